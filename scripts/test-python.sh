#!/usr/bin/env bash
# test-python.sh BUILD CMAKE-FLAGS...: installs the Python package into a virtual environment of its own and tests it.
set -euo pipefail
build="$1"; shift
state="$(find CMakeLists.txt pyproject.toml cmake examples include profiles python src tests/python -type f \
           -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum)"
if [ "$(cat "$build/tests.passed" 2>/dev/null)" = "$state" ]; then
    echo "python: all tests passed before, and nothing has changed since"
    exit 0
fi
[ -x "$build/venv/bin/python" ] || python3 -m venv "$build/venv"
CMAKE_ARGS="$*" "$build/venv/bin/pip" install --quiet --disable-pip-version-check ".[test,plot]"
"$build/venv/bin/python" -B -m pytest -q -p no:cacheprovider tests/python
echo "$state" > "$build/tests.passed"
