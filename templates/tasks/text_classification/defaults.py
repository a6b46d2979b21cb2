# {% if cookiecutter.distribution == "parameter_server" %}
global_batch_size: int = flag(128, "examples per step of one worker")
# {% else %}
global_batch_size: int = flag(128, "examples per step, over all replicas")
# {% endif %}
epochs: int = flag(6, "passes over the training split")
learning_rate: float = flag(1e-3, "learning rate, or the highest one of a schedule")
# {% if cookiecutter.__size == "complete" %}
schedule: str = flag(
    "linear", "learning rate after the warm-up", choices="constant cosine linear".split()
)
warmup_steps: int | None = flag(
    None,
    "steps in which the learning rate rises; None is a tenth of all",
    type=bounded(int, above=-1),
)
# {% else %}
schedule: str = "linear"  # or "cosine" or "constant", after the warm-up; see Schedule
warmup_steps: int | None = None  # None: a tenth of all steps
# {% endif %}
