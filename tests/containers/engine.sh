#!/usr/bin/env bash
# engine.sh start FOLDER | stop FOLDER: a Docker Engine of its own, for a Debian machine without one. Needs root.
#
# Nothing of the machine changes but a few small packages: the engine comes from Debian's packages, unpacked into FOLDER and not
# installed. It runs in a network namespace of its own, which reaches the outside through slirp4netns only, and without systemd.
# FOLDER/environment has what its users source. FOLDER/packages and FOLDER/root.tar stay for the next start, and may be deleted.
set -euo pipefail
folder=$2
mkdir -p "$folder/log"
folder=$(realpath "$folder")
name=relibra-test-containers
run=/run/$name engine=$folder/packages/root
in_namespace() { nsenter --net=/run/netns/$name "$@"; } # `ip netns exec` would mount another /sys and hide the control groups
lacking() { echo "NO CONTAINERS: $*" >&2; exit 69; }
# Debian's mirror, and the folder of wheels that pip has, if any, are those that this machine uses itself.
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1 | sed 's#/$##'; }
wheels() { pip config list 2> /dev/null | sed -n "s#.*file://\(/[^/']*\).*#\1#p" | head -1; }

packages() {
  apt-get install --quiet --quiet --yes --no-install-recommends runc slirp4netns debootstrap iptables iproute2 > "$folder/log/apt" 2>&1 \
    || lacking "Debian's packages could not be installed: $(tail -1 "$folder/log/apt")"
  [ -e "$folder/packages/ready" ] && return
  # Debian 12 has Docker 20 and Compose 1. Trixie's engine runs here too; its runc does not.
  local apt=$folder/packages/apt
  mkdir -p "$apt"/{lists/partial,cache/archives/partial,none} "$engine"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) trixie main" > "$apt/trixie.list"
  local trixie=(-o Dir::Etc::sourcelist="$apt/trixie.list" -o Dir::Etc::sourceparts="$apt/none" -o Dir::State::lists="$apt/lists"
    -o Dir::Cache="$apt/cache" -o Dir::Etc::preferencesparts="$apt/none" -o APT::Sandbox::User=root)
  apt-get "${trixie[@]}" update --quiet --quiet
  (cd "$apt" && apt-get "${trixie[@]}" download --quiet --quiet \
    docker.io docker-cli docker-compose docker-buildx containerd tini prometheus busybox-static)
  for each in "$apt"/*.deb; do dpkg --extract "$each" "$engine"; done
  rm -r "$apt"
  touch "$folder/packages/ready"
}

environment() {
  mkdir -p "$folder/config/cli-plugins"
  echo '{}' > "$folder/config/config.json"
  ln -sf "$engine"/usr/libexec/docker/cli-plugins/* "$folder/config/cli-plugins/"
  cat > "$folder/environment" <<T
export DOCKER_HOST=unix://$run/docker.sock DOCKER_CONFIG="$folder/config" PATH="$engine/usr/bin:$engine/usr/sbin:\$PATH"
# The stand-ins below, in place of the digests of official images.
export PYTHON_IMAGE=python:3.11.11-slim-bookworm REDIS_IMAGE=redis:7.2.5-alpine PROMETHEUS_IMAGE=prom/prometheus:v2.53.1
T
  source "$folder/environment"
}

wait_for() { for _ in $(seq 150); do "$@" > /dev/null 2>&1 && return; sleep 0.2; done; lacking "not within 30 s: $*; see $folder/log"; }

in_background() { # the name of its log and of the file with its process id, then the command
  setsid "${@:2}" > "$folder/log/$1" 2>&1 &
  echo $! > "$run/$1.pid"
}

start_engine() {
  ip netns add $name
  in_namespace ip link set lo up
  mkdir -p $run
  in_background slirp slirp4netns --configure --mtu=1400 --netns-type=path /run/netns/$name tap0
  cat > "$folder/containerd.toml" <<T
version = 2
root = "$folder/data/containerd"
state = "$run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
oom_score = 0
[grpc]
  address = "$run/containerd.sock"
T
  # Without CAP_SYS_RESOURCE no limit may be raised above that of this shell.
  cat > "$folder/daemon.json" <<T
{"data-root": "$folder/data/docker", "exec-root": "$run/docker", "pidfile": "$run/docker.pid", "hosts": ["$DOCKER_HOST"],
 "containerd": "$run/containerd.sock", "storage-driver": "overlay2", "exec-opts": ["native.cgroupdriver=cgroupfs"],
 "default-ulimits": {"nofile": {"Name": "nofile", "Hard": $(ulimit -Hn), "Soft": $(ulimit -Sn)}},
 "userland-proxy-path": "$engine/usr/sbin/docker-proxy", "init-path": "$engine/usr/bin/tini-static"}
T
  in_background containerd nsenter --net=/run/netns/$name containerd --config "$folder/containerd.toml"
  wait_for test -S $run/containerd.sock
  setsid nsenter --net=/run/netns/$name dockerd --config-file "$folder/daemon.json" > "$folder/log/docker" 2>&1 &
  wait_for docker version
  # Builds fetch over HTTP what pip takes from a folder of this machine.
  if [ -n "$(wheels)" ]; then
    in_background wheels nsenter --net=/run/netns/$name python3 -m http.server --directory "$(wheels)" --bind 172.17.0.1 8099
  fi
}

# Debian's packages under the names that the Dockerfiles and Compose ask for. They share users, folders, entry points and options
# with the official images, and not their versions.
stand_ins() {
  if [ ! -e "$folder/root.tar" ]; then
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip,redis-server,redis-tools bookworm \
      "$folder/root" "$(mirror)" > "$folder/log/debootstrap" 2>&1 || lacking "debootstrap: $(tail -1 "$folder/log/debootstrap")"
    tar -C "$folder/root" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' \
      --exclude='./usr/share/locale/*' -cf "$folder/root.tar" .
    rm -rf "$folder/root"
  fi
  docker import "$folder/root.tar" localhost/debian:bookworm > /dev/null
  local context=$folder/stand-ins
  rm -rf "$context" && cp -r "$(dirname "$0")/stand_ins" "$context"
  cp /etc/ssl/certs/ca-certificates.crt "$context/machine.crt"
  cp "$engine"/usr/bin/{prometheus,busybox} "$context/"
  {
    printf '[global]\ncert = /etc/ssl/certs/machine.crt\ndisable-pip-version-check = true\ntrusted-host = 172.17.0.1\n'
    pip config list 2> /dev/null | sed -n "s#^global.\(find-links\|extra-index-url\)='\(.*\)'#\1 = \2#p" \
      | sed "s#file://$(wheels)/#http://172.17.0.1:8099/#g; s#= $(wheels)/\([a-z]*\)#= http://172.17.0.1:8099/\1/#"
  } > "$context/pip.conf"
  docker build --quiet --tag python:3.11.11-slim-bookworm --file "$context/python.Dockerfile" "$context" > /dev/null
  docker build --quiet --tag redis:7.2.5-alpine --file "$context/redis.Dockerfile" "$context" > /dev/null
  docker build --quiet --tag prom/prometheus:v2.53.1 --file "$context/prometheus.Dockerfile" "$context" > /dev/null
}

stop() {
  for each in docker containerd wheels slirp; do
    [ -e "$run/$each.pid" ] || continue
    pid=$(cat "$run/$each.pid")
    kill "$pid" 2> /dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
  done
  umount $run/docker/netns/* 2> /dev/null || true
  ip netns del $name 2> /dev/null || true
  rm -rf "$run" "$folder"/{data,stand-ins,config,environment,containerd.toml,daemon.json}
}

case $1 in
  start)
    [ "$(id -u)" = 0 ] || lacking "there is no Docker Engine, and only root can start one"
    [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ] || lacking "there is no Docker Engine, and one can be started on Debian 12 only"
    stop
    packages
    environment
    start_engine
    stand_ins
    ;;
  stop) stop ;;
esac
