# {% if cookiecutter.task == "text_classification" %}
# {% include "schedule.py" %}


# {% endif %}
def update(optimizer, gradients, variables):
    """Applies the gradients of a batch. An embedding's are IndexedSlices, which may have an index
    twice: Keras's Adam would square each (keras#19992), so they are summed before."""
    optimizer.apply([sum_slices(gradient) for gradient in gradients], variables)


def sum_slices(gradient):
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    index, place = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(index))
    return tf.IndexedSlices(rows, index, gradient.dense_shape)
