def import_operations():
    """Import libraries with operations that `preprocess` uses, other than TensorFlow.

    A worker runs the operations of graphs, and not the Python code of the hooks.
    """
