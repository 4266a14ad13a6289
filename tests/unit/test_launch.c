/* Launch: forked ranks, how they end, and their placement.  The tests of PMI2 run under a real Slurm (tests/slurm). */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "comm/launch/launch_impl.h"
#include "io/task.h"

/* Results of the ranks, in shared memory. */
static struct note {
	volatile int pid[16], seen[16], threads[16], cpus[16];
	char why[160], msg[16][VFM_ERR_MAX];
} * note;

static volatile sig_atomic_t got;
static void on_signal(int sig)
{
	got = sig;
}

/* Runs `rank` in n ranks of a new job.  Returns the pid of the parent, which exits with the job's status. */
static pid_t start(int n, int (*rank)(struct vfm_launch *l))
{
	pid_t pid;

	memset(note, 0, sizeof(*note));
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct vfm_launch l;
		int rc = vfm_launch_init(&l, n, NULL);

		if (rc == 0) {
			note->pid[l.rank] = getpid();
			_exit(rank(&l));
		}
		if (rc == 1)
			memcpy(note->why, l.why, sizeof(note->why));
		_exit(rc == 1 ? l.status : 100);
	}
	return pid;
}

static int end_of(pid_t pid)
{
	int st;

	assert_int_equal(waitpid(pid, &st, 0), pid);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -WTERMSIG(st);
}

static void until(volatile int *word)
{
	for (double t0 = vfm_now(); !*word && vfm_now() - t0 < 20;)
		usleep(2000);
	assert_true(*word);
}

/* Also true of a zombie, which is not a child of this process. */
static bool gone(pid_t pid)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	for (double t0 = vfm_now(); vfm_now() - t0 < 10; usleep(2000)) {
		FILE *f = fopen(path, "r");

		if (!f)
			return true;
		if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		fclose(f);
		if (state == 'Z')
			return true;
	}
	return false;
}

static int exchange(struct vfm_launch *l, const void *mine, size_t n, void *all, struct vfm_err *err)
{
	TRY(vfm_launch_publish(l, mine, n, err));
	for (int r = 0; r < l->size; r++)
		TRY(vfm_launch_fetch(l, r, (char *)all + (size_t)r * n, n, err));
	return 0;
}

static int exchange_ints(struct vfm_launch *l, int mine, int *all)
{
	struct vfm_err err;
	int rc = exchange(l, &mine, sizeof(mine), all, &err);

	if (rc < 0)
		memcpy(note->msg[l->rank], err.msg, sizeof(err.msg));
	return rc;
}

/* ---- exchange ---- */

static int many_rounds(struct vfm_launch *l)
{
	char big[VFM_PUBLISH_MAX], *all = vfm_malloc((size_t)l->size * sizeof(big));
	int v[16], next = (l->rank + 1) % l->size;

	for (int i = 0; i < 2000; i++) {
		if (exchange_ints(l, l->rank * 10000 + i, v) < 0)
			return 40;
		for (int r = 0; r < l->size; r++)
			if (v[r] != r * 10000 + i)
				return 41;
		if (i % 500 == l->rank)
			usleep(3000);
	}
	/* a rank may fetch late: no rank publishes twice before this one has published again */
	if (vfm_launch_publish(l, &l->rank, sizeof(int), NULL) < 0)
		return 47;
	usleep(2000 * (unsigned)l->rank);
	if (vfm_launch_fetch(l, next, v, sizeof(int), NULL) < 0 || v[0] != next)
		return 48;
	memset(big, 'a' + l->rank, sizeof(big));
	if (exchange(l, big, sizeof(big), all, NULL) < 0)
		return 42;
	for (int r = 0; r < l->size; r++)
		for (size_t i = 0; i < sizeof(big); i++)
			if (all[(size_t)r * sizeof(big) + i] != 'a' + r)
				return 43;
	if (vfm_launch_publish(l, big, sizeof(big) + 1, NULL) != VFM_EUSAGE)
		return 44;
	if (l->local_rank != l->rank || l->local_size != l->size || l->nodes != 1 || l->node != 0 ||
		l->node_of[l->size - 1] != 0 || !*l->host)
		return 45;
	if (strncmp(l->job, "local-", 6) != 0 || atoi(l->job + 6) != getppid())
		return 46;
	free(all);
	vfm_launch_end(l);
	return 0;
}

/* test_launch exchange N: as a rank of a Slurm step, in N exchanges; each rank prints a byte of its successor. */
static int exchange_main(const char *n)
{
	unsigned char x[VFM_PUBLISH_MAX], *all;
	struct vfm_launch l;
	struct vfm_err err;
	int rc = vfm_launch_init(&l, 0, &err);

	all = vfm_calloc((size_t)l.size, sizeof(x));
	for (int i = 0; rc >= 0 && i < atoi(n); i++) {
		for (size_t k = 0; k < sizeof(x); k++)
			x[k] = (unsigned char)(i + 200 + l.rank + (int)k);
		rc = exchange(&l, x, sizeof(x), all, &err);
		for (size_t k = 0; rc >= 0 && k < (size_t)l.size * sizeof(x); k++)
			if (all[k] != (unsigned char)(i + 200 + (int)(k / sizeof(x) + k % sizeof(x))))
				rc = vfm_fail(&err, VFM_EENV, "exchange %d: byte %zu is wrong", i, k);
	}
	if (rc < 0) {
		fprintf(stderr, "%s\n", err.msg);
		vfm_launch_abort(&l, 3, err.msg);
		return 3;
	}
	printf("%d of %d: %d\n", l.rank, l.size, all[(size_t)((l.rank + 1) % l.size) * sizeof(x)]);
	free(all);
	vfm_launch_end(&l);
	return 0;
}

static void test_exchange(void **state)
{
	(void)state;
	assert_int_equal(end_of(start(2, many_rounds)), 0);
	assert_int_equal(end_of(start(7, many_rounds)), 0);
}

static void test_alone(void **state)
{
	struct vfm_launch l;
	int in = 7;

	(void)state;
	for (int n = 0; n < 2; n++) {
		assert_int_equal(vfm_launch_init(&l, n, NULL), 0);
		assert_int_equal(l.rank, 0);
		assert_int_equal(l.size, 1);
		assert_int_equal(vfm_launch_publish(&l, &in, sizeof(in), NULL), 0);
		vfm_launch_end(&l);
	}
}

/* ---- how ranks end ---- */

static int ends[16];
static int end_with(struct vfm_launch *l)
{
	vfm_launch_end(l);
	return ends[l->rank];
}

static void test_status(void **state)
{
	static const struct {
		int end[3], want;
	} cases[] = {{{0, 0, 0}, 0}, {{0, 75, 0}, 75}, {{75, 75, 75}, 75}, {{75, 2, 0}, 2}, {{1, 75, 3}, 3},
		{{3, 2, 2}, 3}, {{0, 0, 1}, 1}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memcpy(ends, cases[i].end, sizeof(cases[i].end));
		assert_int_equal(end_of(start(3, end_with)), cases[i].want);
		assert_string_equal(note->why, "");
	}
}

static int one_dies(struct vfm_launch *l)
{
	int v[16];

	if (exchange_ints(l, 0, v) < 0)
		return 40;
	if (l->rank == 1)
		raise(SIGKILL);
	return exchange_ints(l, 0, v) < 0 ? 3 : 0;
}

static void test_killed(void **state)
{
	double t0 = vfm_now();

	(void)state;
	assert_int_equal(end_of(start(3, one_dies)), 3);
	assert_true(vfm_now() - t0 < 5);
	assert_string_equal(note->why, "rank 1 was killed by SIGKILL");
	assert_string_equal(note->msg[0], "rank 1 ended (SIGKILL) before all ranks had connected");
	assert_string_equal(note->msg[2], note->msg[0]);
}

static int one_is_late(struct vfm_launch *l)
{
	int v[16];

	if (l->rank == 2)
		sleep(30);
	if (exchange_ints(l, 0, v) < 0) {
		vfm_launch_abort(l, 3, "a rank is late");
		return 3;
	}
	return 0;
}

static void test_late(void **state)
{
	double t0 = vfm_now();

	(void)state;
	setenv("VFM_COMM_TIMEOUT_S", "0.5", 1);
	assert_int_equal(end_of(start(3, one_is_late)), 3);
	unsetenv("VFM_COMM_TIMEOUT_S");
	assert_true(vfm_now() - t0 < 10); /* the sleeper was killed */
	assert_string_equal(note->msg[0], "rank 2 did not start within 0.5 s");
}

static int wait_for_signal(struct vfm_launch *l)
{
	note->seen[l->rank] = 1;
	for (double t0 = vfm_now(); !got && vfm_now() - t0 < 20;)
		usleep(1000);
	vfm_launch_end(l);
	return got == SIGUSR1 ? 75 : got == SIGTERM ? 1 : 99;
}

static void test_signals(void **state)
{
	static const int sig[] = {SIGUSR1, SIGTERM}, want[] = {75, 1};

	(void)state;
	for (int i = 0; i < 2; i++) {
		pid_t pid = start(3, wait_for_signal);

		for (int r = 0; r < 3; r++)
			until(&note->seen[r]);
		kill(pid, sig[i]);
		assert_int_equal(end_of(pid), want[i]);
	}
}

static void test_parent_dies(void **state)
{
	pid_t pid = start(3, wait_for_signal);

	(void)state;
	for (int r = 0; r < 3; r++)
		until(&note->seen[r]);
	kill(pid, SIGKILL);
	assert_int_equal(end_of(pid), -SIGKILL);
	for (int r = 0; r < 3; r++)
		assert_true(gone(note->pid[r]));
}

/* ---- processors ---- */

static int look_at_cpus(struct vfm_launch *l)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	note->cpus[l->rank] = CPU_COUNT(&set);
	note->threads[l->rank] = vfm_par_threads();
	vfm_launch_end(l);
	return 0;
}

static void test_threads(void **state)
{
	cpu_set_t set;
	int n, sum = 0;

	(void)state;
	unsetenv("OMP_NUM_THREADS");
	sched_getaffinity(0, sizeof(set), &set);
	n = CPU_COUNT(&set);
	if (n < 2)
		skip();
	assert_int_equal(end_of(start(2, look_at_cpus)), 0);
	for (int r = 0; r < 2; r++) {
		assert_int_equal(note->threads[r], note->cpus[r]);
		sum += note->cpus[r];
	}
	assert_int_equal(sum, n);
	setenv("VFM_BIND", "none", 1);
	assert_int_equal(end_of(start(2, look_at_cpus)), 0);
	assert_int_equal(note->cpus[1], n);
	assert_int_equal(note->threads[1], n / 2);
	unsetenv("VFM_BIND");
	setenv("OMP_NUM_THREADS", "3", 1);
	assert_int_equal(end_of(start(2, look_at_cpus)), 0);
	assert_int_equal(note->threads[0], 3);
	unsetenv("OMP_NUM_THREADS");
	setenv("SLURM_CPUS_PER_TASK", "2", 1);
	assert_int_equal(end_of(start(2, look_at_cpus)), 0);
	assert_int_equal(note->threads[0], 1);
	unsetenv("SLURM_CPUS_PER_TASK");
}

/* ---- Slurm's environment ---- */

static void test_no_pmi2(void **state)
{
	struct vfm_launch l;
	struct vfm_err err;

	(void)state;
	setenv("SLURM_STEP_NUM_TASKS", "4", 1);
	assert_int_equal(vfm_launch_init(&l, 0, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "this step has 4 tasks, but no PMI2"));
	assert_non_null(strstr(err.msg, "srun --mpi=pmi2"));
	assert_int_equal(vfm_launch_init(&l, 2, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "-n 2 within a step of 4 tasks"));
	assert_int_equal(vfm_launch_init(&l, 1, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "-n 1 within a step of 4 tasks"));
	setenv("SLURM_STEP_NUM_TASKS", "1", 1);
	assert_int_equal(end_of(start(2, many_rounds)), 0); /* forks within one task */
	setenv("SLURM_STEP_NUM_TASKS", "4x", 1);
	assert_int_equal(vfm_launch_init(&l, 0, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "SLURM_STEP_NUM_TASKS: expected"));
	unsetenv("SLURM_STEP_NUM_TASKS");
	assert_int_equal(vfm_launch_init(&l, 1025, &err), VFM_EUSAGE);
}

/* Sets the variables of "NAME=VALUE …", runs vfm_task_read, and clears them. */
static int read_task(const char *vars, struct vfm_task *t, struct vfm_err *err)
{
	char *text = strdup(vars), *save, *names[16];
	int n = 0, rc;

	for (char *v = strtok_r(text, " ", &save); v; v = strtok_r(NULL, " ", &save)) {
		char *value = strchr(v, '=');

		*value = '\0';
		setenv(v, value + 1, 1);
		names[n++] = v;
	}
	*err = (struct vfm_err){0};
	rc = vfm_task_read(t, err);
	while (n > 0)
		unsetenv(names[--n]);
	free(text);
	return rc;
}

#define SHELL "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 "
#define TASK5 "SLURM_JOB_ID=7 SLURM_NTASKS=64 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 "

static void test_task(void **state)
{
	static const struct {
		const char *vars;
		struct vfm_task want;
		const char *why; /* NULL: succeeds */
	} cases[] = {
		{"", {false, 1, 0, 0}, NULL},
		{SHELL, {false, 1, 0, 0}, NULL}, /* the script of a job */
		{SHELL "SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1", {true, 1, 0, 0}, NULL}, /* of salloc */
		{TASK5, {true, 8, 5, 1}, NULL},
		{TASK5 "PMI_FD=9 PMI_SIZE=8 PMI_RANK=5 PMIX_RANK=5", {true, 8, 5, 1}, NULL},
		{TASK5 "OMPI_COMM_WORLD_SIZE=8 WORLD_SIZE=8 RANK=0", {true, 8, 5, 1}, NULL}, /* of the job's script */
		{"SLURM_STEP_NUM_TASKS=4", {true, 4, -1, 0}, NULL},
		{"PMI_FD=9 PMI_SIZE=4 PMI_RANK=3 MPI_LOCALRANKID=1", {true, 4, 3, 1}, NULL},
		{"WORLD_SIZE=4", {false, 1, 0, 0}, NULL},
		{"WORLD_SIZE=1 RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0", {false, 1, 0, 0}, NULL},
		{"SLURM_PROCID=1 SLURM_NTASKS=8", {0}, "SLURM_PROCID is 1, but SLURM_STEP_NUM_TASKS is not set"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=4", {0}, "SLURM_PROCID: expected 0 to 3"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=-1", {0}, "SLURM_PROCID: expected"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=", {0}, "SLURM_PROCID: expected"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1x", {0}, "SLURM_PROCID: expected"},
		{"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=3", {0}, "SLURM_PROCID: expected 0 to 0"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 SLURM_LOCALID=4", {0}, "SLURM_LOCALID: expected"},
		{"SLURM_STEP_NUM_TASKS=0 SLURM_PROCID=0", {0}, "SLURM_STEP_NUM_TASKS: expected"},
		{"PMI_FD=9 PMI_SIZE=4 PMI_RANK=4", {0}, "PMI_RANK: expected 0 to 3"},
		{"PMI_FD=9 PMI_SIZE=0", {0}, "PMI_SIZE: expected"},
		{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", {0}, "WORLD_SIZE is '2'"},
		{"RANK=0 WORLD_SIZE=x", {0}, "WORLD_SIZE: expected"},
		{"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", {0}, "OMPI_COMM_WORLD_SIZE is '2'"},
		{"MV2_COMM_WORLD_SIZE=2", {0}, "MV2_COMM_WORLD_SIZE is '2'"},
		{"PMI_SIZE=2 PMI_RANK=0", {0}, "PMI_SIZE is '2'"},
		{"PMIX_RANK=1", {0}, "PMIX_RANK is '1'"},
		{SHELL "OMPI_COMM_WORLD_SIZE=8", {0}, "OMPI_COMM_WORLD_SIZE is '8'"},
		{SHELL "SLURM_STEP_NUM_TASKS=1 PMI_FD=9 PMI_SIZE=2 PMI_RANK=0", {0}, "PMI_SIZE is '2'"},
		/* torchrun as the tasks of a step, and mpirun, whose daemons are tasks */
		{TASK5 "RANK=40 WORLD_SIZE=64 LOCAL_RANK=0", {0}, "WORLD_SIZE is '64'"},
		{TASK5 "OMPI_COMM_WORLD_SIZE=16", {0}, "OMPI_COMM_WORLD_SIZE is '16'"},
		{TASK5 "PMIX_RANK=8", {0}, "PMIX_RANK is '8'"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct vfm_task *want = &cases[i].want;
		struct vfm_task t;
		struct vfm_err err;

		assert_int_equal(read_task(cases[i].vars, &t, &err), cases[i].why ? VFM_EUSAGE : 0);
		if (cases[i].why) {
			assert_non_null(strstr(err.msg, cases[i].why));
			continue;
		}
		assert_int_equal(t.launched, want->launched);
		assert_int_equal(t.count, want->count);
		assert_int_equal(t.number, want->number);
		assert_int_equal(t.local, want->local);
	}
}

static void test_step_tasks(void **state)
{
	static const struct {
		const char *tasks, *nodes, *distribution;
		int64_t want[3]; /* tasks, nodes, tasks of each */
		const char *why; /* NULL: succeeds */
	} cases[] = {
		{NULL, "4", NULL, {0, 0, 0}, NULL},
		{"4", NULL, NULL, {4, 0, 0}, NULL},
		{"64", "4(x16)", NULL, {64, 16, 4}, NULL},
		{"12", "4,4(x2)", "block", {12, 3, 4}, NULL},
		{"3", "1(x3)", "cyclic", {3, 3, 1}, NULL},
		{"8", "8", "cyclic", {8, 1, 8}, NULL},
		{"8", "4(x2)", "cyclic:block", {0}, "SLURM_DISTRIBUTION"},
		{"10", "4,3(x2)", NULL, {0}, "different numbers of tasks"},
		{"8", "4", NULL, {0}, "are 4 tasks"},
		{"8", "4(x2", NULL, {0}, "SLURM_STEP_TASKS_PER_NODE: expected"},
		{"8", "4(y2)", NULL, {0}, "SLURM_STEP_TASKS_PER_NODE: expected"},
		{"8", "1073741824(x1073741824)", NULL, {0}, "SLURM_STEP_TASKS_PER_NODE: expected"},
		{"x", "4", NULL, {0}, "SLURM_STEP_NUM_TASKS: expected"},
		{"0", "4", NULL, {0}, "SLURM_STEP_NUM_TASKS: expected"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_step_tasks s;
		struct vfm_err err;

		assert_int_equal(vfm_step_tasks_parse(&s, cases[i].tasks, cases[i].nodes, cases[i].distribution, &err),
			cases[i].why ? VFM_EUSAGE : 0);
		if (cases[i].why) {
			assert_non_null(strstr(err.msg, cases[i].why));
			continue;
		}
		assert_int_equal(s.tasks, cases[i].want[0]);
		assert_int_equal(s.nodes, cases[i].want[1]);
		assert_int_equal(s.per_node, cases[i].want[2]);
	}
}

static void test_mapping(void **state)
{
	static const struct {
		const char *map, *want; /* NULL: malformed */
	} cases[] = {
		{"(vector,(0,2,2))", "0011"},
		{"(vector,(0,4,1))", "0123"},
		{"(vector,(0,1,3),(1,1,1))", "0001"},
		{"(vector,(0,2,1))", "010101"}, /* cyclic */
		{"(vector,(1,1,2),(0,1,2))", "1100"},
		{"(vector,(0,1,4),(1,2,1))", "000012"},
		{"(vector,(0,1,8))", "000"},
		{"(vector,(07777777777,1,1))", NULL},
		{"(vector,(0,2))", NULL},
		{"(vector,(0,2,0))", NULL},
		{"(vector,(0,0,2))", NULL},
		{"(vector,(0,2,2", NULL},
		{"(vector,)", NULL},
		{"(vector,(0,1,1),)", NULL},
		{"(vector,(-1,2,2))", NULL},
		{"(vector,(0,99999999999999999999,1))", NULL},
		{"", NULL},
		{"vector", NULL},
	};
	int node[16];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int n = cases[i].want ? (int)strlen(cases[i].want) : 16;

		assert_int_equal(vfm_launch_mapping(cases[i].map, n, node), cases[i].want != NULL);
		for (int r = 0; cases[i].want && r < n; r++)
			assert_int_equal(node[r], cases[i].want[r] - '0');
	}
}

static void test_place(void **state)
{
	int node_of[] = {5, 3, 5, 3, 9};
	struct vfm_launch l = {.rank = 3, .size = 5, .node_of = node_of};

	(void)state;
	vfm_launch_place(&l);
	assert_int_equal(l.nodes, 3);
	assert_int_equal(l.node, 1);
	assert_int_equal(l.local_rank, 1);
	assert_int_equal(l.local_size, 2);
	assert_int_equal(node_of[0], 0);
	assert_int_equal(node_of[4], 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_parent_dies),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_no_pmi2),
		cmocka_unit_test(test_task),
		cmocka_unit_test(test_step_tasks),
		cmocka_unit_test(test_mapping),
		cmocka_unit_test(test_place),
	};
	static const char *const slurm[] = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "PMI_FD",
		"PMI_SIZE", "PMI_RANK", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "VFM_BIND"};
	struct sigaction sa = {.sa_handler = on_signal};

	if (argc == 3 && !strcmp(argv[1], "exchange"))
		return exchange_main(argv[2]);
	for (size_t i = 0; i < sizeof(slurm) / sizeof(slurm[0]); i++)
		unsetenv(slurm[i]);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	note = mmap(NULL, sizeof(*note), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return note == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
