"""The JavaScript library, where npm is installed."""

from tests.support.javascript import HAS_NPM

collect_ignore = [] if HAS_NPM else ["test_beside_javascript.py"]
