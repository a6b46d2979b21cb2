def list_variables(parts):
    """Return the variables of a model or optimizer, or of a tuple of these and None."""
    return [variable for part in tf.nest.flatten(parts) if part for variable in part.variables]
