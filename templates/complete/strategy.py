# {% extends "strategy.py" %}
def create_strategy():
    if name == "multi_worker":
        # {% block meet %}
        meet(read_tf_config()[1])
        on_signals(signal.SIG_DFL)  # should one be lost just now, Python would hear nothing
        # {% endblock %}
