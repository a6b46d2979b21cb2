# {% if cookiecutter.task != "text_classification" %}
SCHEDULE: str = "constant"
WARMUP_STEPS: int | None = 0  # None is a tenth of all steps
# {% endif %}
ACCUMULATION_STEPS: int = 1  # the parts in which a replica takes its batch
CLIP_NORM: float | None = None
PRECISION: str = "float32"
