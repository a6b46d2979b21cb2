# {% extends "header.py" %}
# {% block imports %}
# {% if cookiecutter.task == "text_classification" %}
import argparse
import ast
import concurrent.futures
import contextlib
import datetime
import functools
import gc
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# {% else %}
import argparse
import ast
import concurrent.futures
import contextlib
import datetime
import gc
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# {% endif %}
# {% endblock %}
# {% block before_tensorflow %}
if __name__ == "__main__":  # until `main` listens: no traceback of the imports
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(143))  # NumPy would catch an exception

# {% endblock %}
