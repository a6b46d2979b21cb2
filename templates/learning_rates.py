def read_learning_rates():
    """Return the learning rate of each optimizer by name: learning_rate, learning_rate_2, …"""
    rates = {}
    for each in tf.nest.flatten(optimizer):
        if each:
            name = f"learning_rate_{len(rates) + 1}" if rates else "learning_rate"
            # This is a variable, or what a schedule or a callable returns, maybe a Python number.
            rates[name] = np.float64(each.learning_rate)
    return rates
