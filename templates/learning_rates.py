def read_learning_rates():
    """Return the learning rate of each optimizer by name: learning_rate, learning_rate_2, …"""
    rates = {}
    for each in tf.nest.flatten(optimizer):
        if each:
            name = f"learning_rate_{len(rates) + 1}" if rates else "learning_rate"
            # A variable or, of a schedule or a callable, a tensor or a Python number.
            rates[name] = np.float64(each.learning_rate)
    return rates
