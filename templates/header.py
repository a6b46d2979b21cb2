# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow>=2.18", "keras>=3.10", "tensorboard>=2.18", "{{ 'keras-hub>=0.21' if 'text' in cookiecutter.task else 'scikit-learn>=1.4' }}"]
# ///
"""{{ cookiecutter.project_name | replace('\\', '\\\\') | replace('"', '\\"') }}: the same numbers on any device.

    uv run train.py                     train, or go on where the last checkpoint stands
    uv run train.py --replicas 4        rehearse four replicas on this machine's CPU
    uv run train.py --mode evaluate     the best checkpoint of the run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be one worker of several: see README.md

Edit section 3, and maybe 4, at each TODO(you). From cookiecutter-tf-distribute {{ cookiecutter._version }}.
"""

# {% block imports %}
# {% if cookiecutter.task == "text_classification" %}
import argparse
import datetime
import functools
import gc
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# {% else %}
import argparse
import datetime
import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# {% endif %}
# {% endblock %}
# {% block before_tensorflow %}
# {% endblock %}
os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json prefers
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 shows what TensorFlow tells of itself
gc.set_threshold(50_000)  # by Python's own 700, a sixth of the start is spent on finding no garbage
stderr = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its import tells, whatever the level (abseil#1957)
try:
    import keras
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)
