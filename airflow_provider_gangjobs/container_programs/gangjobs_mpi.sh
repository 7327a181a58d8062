#!/bin/sh
# Runs an MPI program on the ranks of a gang: GangJobOperator(launch="mpi"). The image needs a POSIX shell, ssh, sshd
# and ssh-keygen of OpenSSH, and an MPI that starts processes by ssh, such as Open MPI, MPICH or Intel MPI.
#
#   gangjobs_mpi.sh run COMMAND [ARGUMENT...]   The program of each rank. Rank 0 waits until all other ranks answer by
#                                               ssh, runs the command, and tells the other ranks its exit status. The
#                                               other ranks run sshd until then.
#   gangjobs_mpi.sh session FOLDER              sshd runs this for each connection.
#   gangjobs_mpi.sh hello | end STATUS          Rank 0 runs this on the other ranks.
#
# The variables GANG_..., MASTER_ADDR and RANK come from the provider.
set -u

answer='gangjobs: done'
end_wait_s=60
# A rank that fails because rank 0 has failed waits until the Job controller stops it: rank 0 has failed first.
stop_wait_s=60

say() {
    echo "gangjobs: $*" >&2
}

# Fails this rank. The provider repeats the message in the error of the task.
fail() {
    say "$*"
    text=$(printf '%s' "$*" | tr -d '\000-\037' | cut -c 1-2000 | sed 's/[\\"]/\\&/g')
    printf '{"error": "%s", "at": %s}' "$text" "$(date +%s)" 2>/dev/null >"${GANG_RESULT_PATH:-/dev/null}"
    stop_sshd
    exit 1
}

is_number() {
    case $1 in
        '' | *[!0-9]*) return 1 ;;
    esac
}

check() {
    for name in GANG_MPI_PORT GANG_MPI_SLOTS GANG_MPI_WAIT_S GANG_SIZE RANK; do
        eval "value=\${$name:-}"
        is_number "$value" || fail "the variable $name is '$value', not a whole number"
    done
    for program in ssh sshd ssh-keygen; do
        command -v "$program" >/dev/null ||
            fail "$program is not in the image. Install OpenSSH (Debian, Ubuntu: openssh-client, openssh-server)"
    done
    id -un >/dev/null 2>&1 ||
        fail "the user with the id $(id -u) is not in /etc/passwd of the image, and sshd needs the entry"
}

# Writes the keys, and the files of ssh and sshd. One key is the identity of the user and of all hosts, so a host that
# does not have the key is no rank of this gang.
prepare() {
    rm -rf "$folder"/*
    { cat "$GANG_MPI_SSH_KEY" && echo; } >"$folder/key" || fail "the SSH key in $GANG_MPI_SSH_KEY cannot be read"
    ssh-keygen -y -P '' -f "$folder/key" </dev/null >"$folder/key.pub" 2>"$folder/problem" ||
        fail "ssh-privatekey of the Secret is no private SSH key without a passphrase: $(tail -n 1 "$folder/problem")"
    echo "* $(cut -d ' ' -f 1-2 "$folder/key.pub")" >"$folder/known_hosts"
    { export -p && echo "umask $umask_of_container"; } >"$folder/environment"
    cat >"$folder/ssh_config" <<END
Port $GANG_MPI_PORT
IdentityFile "$folder/key"
IdentitiesOnly yes
UserKnownHostsFile "$folder/known_hosts"
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
PreferredAuthentications publickey
ConnectTimeout 60
ConnectionAttempts 3
ServerAliveInterval 30
ServerAliveCountMax 20
LogLevel ERROR
END
    # MPICH tells the other ranks the short host name of rank 0, under which no other pod finds it, and waits forever for
    # a rank to which its ssh could not connect.
    cat >"$folder/ssh" <<'END'
#!/bin/sh
own=$(uname -n)
for word in "$@"; do
    shift
    case $word in
        "$own":*) word=$MASTER_ADDR:${word#*:} ;;
    esac
    set -- "$@" "$word"
done
ssh "$@"
status=$?
if [ "$status" -eq 255 ]; then
    echo "gangjobs: the MPI launcher is ended, because its ssh has failed" >&2
    kill "$PPID"
fi
exit "$status"
END
    chmod 700 "$folder/ssh"
    cat >"$folder/sshd_config" <<END
Port $GANG_MPI_PORT
ListenAddress $GANG_MPI_ADDRESS
HostKey "$folder/key"
AuthorizedKeysFile "$folder/key.pub"
StrictModes no
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PasswordAuthentication no
ChallengeResponseAuthentication no
AllowAgentForwarding no
AllowTcpForwarding no
X11Forwarding no
PermitTTY no
MaxStartups 1000
PidFile none
LogLevel ERROR
ForceCommand /bin/sh '$GANG_FILES/gangjobs_mpi.sh' session '$folder'
END
}

start_sshd() {
    if [ "$(id -u)" -eq 0 ]; then
        (umask 022 && mkdir -p /run/sshd) 2>/dev/null # Debian and Ubuntu: sshd does not start without this folder
    fi
    "$(command -v sshd)" -D -e -f "$folder/sshd_config" &
    sshd=$!
}

stop_sshd() {
    [ -z "$sshd" ] || kill "$sshd" 2>/dev/null
    sshd=
}

check_sshd() {
    kill -0 "$sshd" 2>/dev/null || fail "sshd has ended, see the lines above in the log of rank $RANK"
}

# Writes one line for each rank: "name slots=2" for Open MPI, "name:2" for MPICH and Intel MPI.
write_host_files() {
    rank=0
    while [ "$rank" -lt "$GANG_SIZE" ]; do
        echo "$(name_of "$rank") slots=$GANG_MPI_SLOTS" >&3
        echo "$(name_of "$rank"):$GANG_MPI_SLOTS" >&4
        rank=$((rank + 1))
    done 3>"$folder/hostfile" 4>"$folder/machinefile"
}

# Prints the name of a rank. MASTER_ADDR is the name of rank 0: <job>-0.<service>
name_of() {
    job=${MASTER_ADDR%%.*}
    echo "${job%-0}-$1.${MASTER_ADDR#*.}"
}

# Runs this script with the given arguments on one rank. The printed answer counts and not the exit status of ssh,
# because the rank may end before ssh has closed the connection.
ask() {
    command="/bin/sh \"\$GANG_FILES/gangjobs_mpi.sh\" $2"
    # shellcheck disable=SC2029 # the client expands the arguments, which are words of this script and a number
    if ssh -F "$folder/ssh_config" -o ConnectTimeout=10 -o ConnectionAttempts=1 "$(name_of "$1")" "$command" </dev/null 2>"$folder/problem.$1" |
        grep "^$answer\$" >/dev/null; then
        : >"$folder/answered.$1"
    fi
}

# Asks all other ranks, 32 at a time, and asks again for at most $2 seconds those that have not answered. Sets `missing`.
ask_others() {
    until=$(($(date +%s) + $2))
    reported=$(date +%s)
    rm -f "$folder"/answered.*
    missing=
    rank=1
    while [ "$rank" -lt "$GANG_SIZE" ]; do
        missing="$missing $rank"
        rank=$((rank + 1))
    done
    while [ -n "$missing" ]; do
        asked=
        count=0
        for rank in $missing; do
            ask "$rank" "$1" &
            asked="$asked $!"
            count=$(((count + 1) % 32))
            if [ "$count" -eq 0 ]; then
                # shellcheck disable=SC2086 # the list has words
                wait $asked
                asked=
            fi
        done
        # shellcheck disable=SC2086
        [ -z "$asked" ] || wait $asked
        asked=$missing
        missing=
        for rank in $asked; do
            [ -e "$folder/answered.$rank" ] || missing="$missing $rank"
        done
        [ -n "$missing" ] || return 0
        check_sshd
        now=$(date +%s)
        [ "$now" -lt "$until" ] || return 1
        if [ $((now - reported)) -ge 30 ]; then
            say "waiting for $(describe_missing)"
            reported=$now
        fi
        sleep 1
    done
}

# Says which ranks have not answered, and why the first of them has not.
describe_missing() {
    first=${missing# }
    first=${first%% *}
    problem=$(tail -n 1 "$folder/problem.$first")
    echo "rank ${missing# }: $(name_of "$first"): ${problem:-the connection was closed}"
}

lead() {
    write_host_files
    ask_others hello "$GANG_MPI_WAIT_S" ||
        fail "these ranks did not answer by ssh within $GANG_MPI_WAIT_S seconds: $(describe_missing)"
    umask "$umask_of_container"
    stopped=
    trap 'stopped=1; kill "$program" 2>/dev/null' TERM INT
    "$@" &
    program=$!
    wait "$program"
    status=$?
    while [ -n "$stopped" ] && kill -0 "$program" 2>/dev/null; do # a signal has interrupted the wait
        wait "$program"
        status=$?
    done
    if [ -z "$stopped" ]; then
        trap 'stop_sshd; exit 143' TERM INT
        if [ "$status" -eq 0 ]; then
            ask_others 'end 0' "$end_wait_s" ||
                fail "the program has succeeded, but these ranks cannot be told: $(describe_missing)"
        else
            ask_others "end $status" 0
        fi
    fi
    stop_sshd
    exit "$status"
}

follow() {
    waited=0
    until [ -e "$folder/end" ]; do
        check_sshd
        if [ ! -e "$folder/greeted" ]; then
            [ "$waited" -lt "$GANG_MPI_WAIT_S" ] ||
                fail "rank 0 ($MASTER_ADDR) has not connected by ssh within $GANG_MPI_WAIT_S seconds"
            waited=$((waited + 1))
        fi
        sleep 1
    done
    status=$(cat "$folder/end")
    if [ "$status" -eq 0 ]; then
        say "the program on rank 0 has succeeded"
        sleep 2 # sshd closes the connection of rank 0 meanwhile
        stop_sshd
        exit 0
    fi
    say "the program on rank 0 has ended with exit status $status"
    waited=0
    while [ "$waited" -lt "$stop_wait_s" ]; do
        sleep 1
        waited=$((waited + 1))
    done
    fail "the program on rank 0 has ended with exit status $status"
}

# Runs what the client asks for in the environment of the container, which sshd does not pass on.
session() {
    folder=$1
    shell=${SHELL:-/bin/sh}
    command=${SSH_ORIGINAL_COMMAND:-true}
    # shellcheck disable=SC1091 # `prepare` writes the file
    . "$folder/environment"
    exec "$shell" -c "$command"
}

end() {
    echo "$1" >"$GANG_MPI_FOLDER/end.part" &&
        mv "$GANG_MPI_FOLDER/end.part" "$GANG_MPI_FOLDER/end" &&
        echo "$answer"
}

action=$1
shift
case $action in
    session) session "$1" ;;
    hello) : >"$GANG_MPI_FOLDER/greeted" && echo "$answer" ;;
    end) end "$1" ;;
    run)
        PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin
        folder=$GANG_MPI_FOLDER
        sshd=
        trap 'stop_sshd; exit 143' TERM INT
        umask_of_container=$(umask)
        umask 077
        check
        prepare
        start_sshd
        if [ "$RANK" -eq 0 ]; then
            lead "$@"
        else
            follow
        fi
        ;;
esac
