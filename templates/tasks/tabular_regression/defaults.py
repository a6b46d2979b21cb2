# {% if cookiecutter.distribution == "parameter_server" %}
global_batch_size: int = flag(32, "examples per step of one worker")
# {% else %}
global_batch_size: int = flag(32, "examples per step, over all replicas")
# {% endif %}
epochs: int = flag(40, "passes over the training split")
learning_rate: float = flag(3e-3, "learning rate, or the highest one of a schedule")
# {% if cookiecutter.__size == "complete" %}
schedule: str = flag(
    "constant", "learning rate after the warm-up", choices="constant cosine linear".split()
)
warmup_steps: int = flag(
    0, "steps in which the learning rate rises to --learning-rate", type=bounded(int, above=-1)
)
# {% endif %}
