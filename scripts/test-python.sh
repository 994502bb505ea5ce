#!/usr/bin/env bash
# test-python.sh BUILD: installs the Python package into a virtual environment of its own and tests it.
set -euo pipefail
environment="$1-python/venv"
state="$( (git ls-files -z -- python pyproject.toml src include cmake examples/kept_shares.py tests/python 2>/dev/null ||
           find python src include tests/python -type f -print0) | sort -z | xargs -0 sha256sum | sha256sum)"
if [ "$(cat "$1-python/tests.passed" 2>/dev/null)" = "$state" ]; then
    echo "python: all tests passed before, and nothing has changed since"
    exit 0
fi
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check ".[test,plot]"
"$environment/bin/python" -m pytest -q tests/python
echo "$state" > "$1-python/tests.passed"
