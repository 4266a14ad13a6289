#!/bin/bash
# Which task of how many a process is: scripts of jobs, shells, steps, array jobs and heterogeneous jobs.
. "${0%/*}/lib.sh"
[ -x "$B/bin/vfm-curate" ] || skip_all "vfm-curate is not built"
export OMP_NUM_THREADS=1

vfm-curate synth -q --count 24 -d raw --size 64x64 --frames 4 >r.jsonl || exit 1
records r.jsonl | jq -r .src | sort >all
cat >filter.sh <<'END'
#!/bin/bash
mkdir -p "$1" && exec vfm-curate filter -q r.jsonl >"$1/${SLURM_ARRAY_TASK_ID:-0}-${SLURM_PROCID:-0}"
END
chmod +x filter.sh

shares() { # NAME: among how many processes the records were divided, each once
	records "$1"/* | jq -r .src | sort | cmp -s - all || echo "not every record once:"
	find "$1" -type f | wc -l
}

# As a person types them; salloc starts $SHELL, which not every environment has.
shell() { # OPTION ... <COMMANDS
	(cat && echo exit) | SHELL=/bin/bash timeout 60 script -qec "salloc -Q $*" /dev/null >shell.log 2>&1
}

run timeout 60 srun -N2 -n4 ./filter.sh step
is "$rc $(shares step)" "0 4" "the tasks of a step"
run timeout 60 srun -n1 ./filter.sh one
is "$rc $(shares one)" "0 1" "a step of one task"
run timeout 60 script -qec "srun -n1 --pty ./filter.sh pty" /dev/null
is "$rc $(shares pty)" "0 1" "srun --pty"
cat >job.sh <<'END'
#!/bin/bash
./filter.sh body
srun --preserve-env -n1 ./filter.sh preserve
srun -n4 ./filter.sh jobstep
srun --overlap -n2 bash -c '[ $SLURM_PROCID = 0 ] || srun --overlap -n1 ./filter.sh nested'
END
run timeout 60 sbatch -Q --wait -n4 -o job.log job.sh
is "$rc $(<job.log)" "0 " "a job"
is "$(shares body)" 1 "its script does everything"
is "$(shares preserve)" 1 "srun --preserve-env -n1"
is "$(shares jobstep)" 4 "a step of it"
is "$(shares nested)" 1 "a step of one task that a task of several starts"
printf '#!/bin/bash\nsrun -n3 ./filter.sh array\n' >array.sh
run timeout 60 sbatch -Q --wait --array=3-5:2 -n3 -o array.log array.sh
is "$rc $(shares array)" "0 6" "the steps of an array job"
printf '#!/bin/bash\n./filter.sh scripts\n' >array.sh
run timeout 60 sbatch -Q --wait --array=1-3 -n3 -o array.log array.sh
is "$rc $(shares scripts)" "0 3" "the scripts of an array job"
run timeout 60 salloc -Q -n6 ./filter.sh command
is "$rc $(shares command)" "0 1" "a command of salloc"
run timeout 60 salloc -Q -n1 : -n2 srun --het-group=0,1 ./filter.sh het
is "$rc $(shares het)" "0 3" "a step of a heterogeneous job"
shell -n8 -N2 <<'END'
env >shell.env
./filter.sh shell
srun -n8 ./filter.sh shellstep
END
is "$(grep -E '^SLURM_(STEP_ID|NTASKS)=' shell.env | sort)" $'SLURM_NTASKS=8\nSLURM_STEP_ID=4294967290' "a shell in an interactive step"
is "$(shares shell)" 1 "the shell does everything"
is "$(shares shellstep)" 8 "and its step has shares"

# ---- launchers that are not Slurm's
run timeout 60 srun -n2 env RANK=0 WORLD_SIZE=16 ./filter.sh torch
like "$rc $err" "^2 .*WORLD_SIZE is '16': each process" "torchrun in a step"
run timeout 60 srun -n2 --mpi=pmi2 ./filter.sh pmi2
is "$rc $(shares pmi2)" "0 2" "PMI2's variables are Slurm's"
done_testing
