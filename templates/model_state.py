def list_variables(parts):
    """Return the variables of a model or optimizer, or of a tuple of these."""
    return [variable for part in tf.nest.flatten(parts) for variable in part.variables]
