def summarize(loss_sum, weight_sum, metrics):
    """Return the mean loss and the metrics by name. Without weights, the loss is 0."""
    loss = float(loss_sum / weight_sum) if weight_sum else 0.0
    return {"loss": loss, **{metric.name: float(metric.result()) for metric in metrics}}
