# Functions that make virtual environments, for the other scripts of this folder.

# environment FOLDER REQUIREMENT...: makes the virtual environment FOLDER, installs the requirements, and puts
# it first in PATH. Nothing is installed if the requirements and pyproject.toml are those of the last call.
# PYTHON: the interpreter (default: python3.11, else python3).
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

# install FOLDER REQUIREMENT...: installs the requirements into the virtual environment FOLDER. PyTorch comes
# from its own index, which has builds for the CPU without the CUDA libraries (gigabytes). If that index
# cannot be reached, PyTorch comes from the default index; if PIP_FIND_LINKS names a folder of packages, from
# that folder.
install() {
    local uv=("$1/bin/uv" pip install -q --python "$1/bin/python")
    shift
    if [ -n "${PIP_FIND_LINKS:-}" ]; then
        UV_FIND_LINKS=$PIP_FIND_LINKS "${uv[@]}" "$@"
    else
        "${uv[@]}" --torch-backend cpu "$@" || "${uv[@]}" "$@"
    fi
}
