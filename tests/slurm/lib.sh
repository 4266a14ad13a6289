# shellcheck shell=bash
# lib.sh - the first line of every test of this folder:  . "${0%/*}/lib.sh"
#
# A Slurm of its own for each test file: munged, slurmctld and four slurmd, n1 .. n4, of four processors each.  A node has network,
# host name, IPC, /dev/shm and process numbers of its own, so that two nodes share what two machines would share: the files.
# All of it lives in a process namespace that dies with the test, and in $SCRATCH; nothing under /etc
# is read or written, and nothing is left behind.  Needs root.  Facts about it: README.md.
#
# Beside what ../cli/lib.sh gives:
#   node_start I | node_off I | node_cut I   boots a node; ends it at once, as a switched-off machine; its network first,
#                                            so that its peers receive no notice
#   node_pids I NAME     the processes of that name on node I
#   job_state ID         RUNNING, PENDING, COMPLETED, …
set -u

if [ -z "${VFM_SLURM_TEST:-}" ]; then
	# The outer process: sees whether this can be done, and does it in namespaces.
	why=
	for c in slurmctld slurmd srun munged ip unshare mount jq; do
		command -v "$c" >/dev/null || why="${why:-$c is not installed (make deps-slurm)}"
	done
	[ "$(id -u)" = 0 ] || why="not root"
	[ -n "$why" ] || unshare -n -m -p -u -i -f --mount-proc true 2>/dev/null || why="no namespaces here"
	if [ -n "$why" ]; then
		echo "1..0 # SKIP $why"
		echo "# SKIPPED ${0##*/}, NOTHING IS TESTED UNDER SLURM: $why" >&2
		exit 0
	fi
	VFM_SLURM_TEST=$(mktemp -d "${TMPDIR:-/tmp}/vfm-slurm.XXXXXX") || exit 1
	export VFM_SLURM_TEST
	trap 'rm -rf "$VFM_SLURM_TEST"' EXIT
	trap 'exit 1' INT TERM
	unshare -n -m -p -u -i -f --kill-child --mount-proc bash "$0" "$@" &
	wait $!
	exit $?
fi

# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"

NODES=4 NET=10.77.0 CL=$VFM_SLURM_TEST
unset SLURM_CONF SLURM_JOB_ID SLURM_STEP_NUM_TASKS PMI_FD PMI_SIZE PMI_RANK
declare -A node_pid

node_start() {
	local i=$1
	mkdir -p "$CL/spool/n$i" "$CL/tmp/n$i"
	cat >"$CL/boot.$i" <<-END
		mount -t tmpfs none /dev/shm
		mount --bind $CL/hosts /etc/hosts
		hostname n$i
		ip link set lo up
		for t in \$(seq 200); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.02; done
		ip addr add $NET.$i/24 dev eth0
		ip link set eth0 up
		exec slurmd -D -N n$i >/dev/null 2>&1
	END
	unshare -n -m -p -u -i -f --kill-child --mount-proc bash "$CL/boot.$i" </dev/null >"$CL/log/boot.$i" 2>&1 &
	node_pid[$i]=$!
	wait_for 10 has_own_net "${node_pid[$i]}" || return 1
	ip link add "veth$i" type veth peer name eth0 netns "${node_pid[$i]}"
	ip link set "veth$i" master br0 up
}

has_own_net() { # PID
	[ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}

node_off() {
	kill -9 "${node_pid[$1]}" && wait "${node_pid[$1]}" 2>/dev/null
	wait_for 10 node_is_off "$1"
}

node_cut() {
	ip link del "veth$1"
	node_off "$1"
}

node_is_off() {
	! ip link show "veth$1" >/dev/null 2>&1
}

# By the network they are in; a node's slurmstepd and tasks carry its host name.
node_pids() {
	local p ns
	ns=$(readlink "/proc/$(pgrep -P "${node_pid[$1]}")/ns/net")
	for p in $(pgrep -x "$2"); do
		[ "$(readlink "/proc/$p/ns/net")" = "$ns" ] && echo "$p"
	done
}

job_state() {
	squeue -h -t all -j "$1" -o %T
}

job_is() { # ID STATE
	[ "$(job_state "$1")" = "$2" ]
}

job_ended() { # ID: all tasks of an array
	! job_state "$1" | grep -qE 'PENDING|RUNNING|COMPLETING|REQUEUED|SUSPENDED'
}

nodes_idle() {
	[ "$(sinfo -h -N -p low -t idle -o %N | wc -l)" -ge "$NODES" ]
}

cluster_start() {
	local i
	mkdir -p "$CL"/{state,log,munge,pid,spool,tmp}
	chmod 755 "$CL" "$CL/munge"
	chmod 700 "$CL/log"
	mount -t tmpfs none /dev/shm
	hostname ctl
	ip link set lo up
	ip link add br0 type bridge
	ip addr add $NET.254/24 dev br0
	ip link set br0 up
	{
		echo "127.0.0.1 localhost"
		echo "$NET.254 ctl"
		for i in $(seq $NODES); do echo "$NET.$i n$i"; done
	} >"$CL/hosts"
	mount --bind "$CL/hosts" /etc/hosts
	sed -e "s|@DIR@|$CL|g; s|@NODES@|$NODES|g; s|@NET@|$NET|g" "$TOP/tests/slurm/slurm.conf.in" >"$CL/slurm.conf"
	echo ConstrainCores=no >"$CL/cgroup.conf"
	export SLURM_CONF=$CL/slurm.conf
	(umask 077 && head -c 1024 /dev/urandom >"$CL/munge/key")
	munged --key-file="$CL/munge/key" --socket="$CL/munge/sock" --num-threads=2 --pid-file="$CL/pid/munged.pid" \
		--log-file="$CL/log/munged.log" --seed-file="$CL/munge/seed" || return 1
	slurmctld -i -c || return 1
	for i in $(seq $NODES); do node_start "$i"; done
	wait_for 30 nodes_idle
}

# KEEP=1 keeps the logs, too.
cluster_finish() {
	local status=$?
	[ "$status" = 0 ] && [ "$n_failed" = 0 ] || tail -n 5 "$CL"/log/slurmctld.log >&2
	[ -z "${KEEP:-}" ] || cp -r "$CL" "$SCRATCH/cluster"
	(exit $status)
	finish
}
trap cluster_finish EXIT

if ! cluster_start; then
	sinfo -N -l >&2
	tail -n 20 "$CL"/log/* >&2
	echo "Bail out! no cluster"
	exit 1
fi
