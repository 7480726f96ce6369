#!/bin/sh
# Makes the private environment .venv, or brings it up to date. Does nothing when nothing changed.
# Safe to interrupt: the stamp that says "ready" is written last.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd -P)
venv=$root/.venv
stamp=$venv/.ready
key=$(cat pyproject.toml constraints.txt tools/setup.sh | cksum)

# An environment copied or moved from elsewhere still points there.
at_home() { grep -qF "$venv" "$venv/bin/activate" 2>/dev/null; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
fail() { echo "setup: $*" >&2; exit 1; }

if at_home && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && new_enough "$venv/bin/python"; then
    exit 0
fi

find_python() {
    # Each is run, not only looked up: a version manager leaves names that do not start.
    for python in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if command -v "$python" >/dev/null 2>&1 && new_enough "$python"; then
            command -v "$python"
            return
        fi
    done
    fail "no Python 3.11 or newer${PYTHON:+ in PYTHON=$PYTHON}; install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

make_with_pip() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        remedy="apt-get install -y $package"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            echo "setup: $python cannot make environments; running: $remedy" >&2
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $remedy; } >/dev/null || fail "that failed; install uv instead"
        else
            fail "$python cannot make environments; run: sudo $remedy"
        fi
    fi
    "$python" -m venv --clear "$venv"
}

rm -f "$stamp"
if command -v uv >/dev/null 2>&1; then
    if ! at_home || ! new_enough "$venv/bin/python"; then
        echo "setup: making .venv with uv" >&2
        python=$(find_python)
        rm -rf "$venv"
        uv venv --quiet --python "$python" "$venv"
    fi
    echo "setup: installing" >&2
    uv pip install --quiet --compile-bytecode --python "$venv/bin/python" -c constraints.txt -e '.[all]' --group dev
else
    if ! at_home || ! new_enough "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        echo "setup: making .venv" >&2
        make_with_pip
    fi
    echo "setup: installing" >&2
    pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
    pip install --upgrade 'pip>=25.1' # the first that knows --group
    pip install -c constraints.txt -e '.[all]' --group dev
fi
echo "$key" >"$stamp"
