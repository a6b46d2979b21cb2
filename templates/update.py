# {% if cookiecutter.task == "text_classification" %}
# {% include "schedule.py" %}


# {% endif %}
def update(optimizer, gradients, variables):
    """Applies the sums of all replicas' gradients. An embedding's are IndexedSlices, which may have
    an index twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)
