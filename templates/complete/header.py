# {% extends "header.py" %}
# {% block imports %}
import argparse
import ast
import atexit
import concurrent.futures
import contextlib
import datetime
import functools
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from pathlib import Path

# {% endblock %}
# {% block before_tensorflow %}
if __name__ == "__main__":  # until `main` listens: no traceback of the imports
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(143))  # NumPy would catch an exception

# {% endblock %}
