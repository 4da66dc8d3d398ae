# Sourced by the scripts beside it and by .ci/run.

# environment FOLDER REQUIREMENT...: make the virtual environment FOLDER, install the requirements, put it first in PATH.
# Nothing is done where the environment has them already. PYTHON: the interpreter (default: python3.11, else python3).
environment() {
    local folder=$1 python wanted
    shift
    wanted=$(cksum pyproject.toml; echo "$*")
    if [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ]; then
        python=${PYTHON:-$(command -v python3.11 || command -v python3)}
        if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "Python 3.11 or newer is needed: set PYTHON to its interpreter" >&2
            return 1
        fi
        "$python" -m venv "$folder"
        "$folder/bin/python" -m pip install -q --disable-pip-version-check 'uv>=0.5'
        install "$folder" "$@"
        echo "$wanted" >"$folder/installed"
    fi
    PATH="$(cd "$folder" && pwd)/bin:$PATH"
}

# PyTorch's own index has builds for the CPU, without gigabytes of CUDA libraries. Where that index cannot be reached, or pip
# is set to a folder of packages (PIP_FIND_LINKS), PyTorch comes from there or from the default index.
install() {
    local uv=("$1/bin/uv" pip install -q --python "$1/bin/python")
    shift
    if [ -n "${PIP_FIND_LINKS:-}" ]; then
        UV_FIND_LINKS=$PIP_FIND_LINKS "${uv[@]}" "$@"
    else
        "${uv[@]}" --torch-backend cpu "$@" || "${uv[@]}" "$@"
    fi
}
