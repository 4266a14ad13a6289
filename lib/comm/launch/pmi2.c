/* Ranks of a Slurm step, or of another PMI2 launcher.  libpmi2 is opened at run time, since containers and hosts
 * without Slurm lack it.  One thread at a time uses it.  A fence sends the pairs of all ranks to each slurmstepd; a get
 * after it asks that of this node. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/launch/launch_impl.h"

enum { ABORT_GRACE_MS = 2000 };
enum { ID_NULL = -1, VALUE_MAX = 1024, HEX_MAX = 2 * VFM_PUBLISH_MAX };

/* The functions of <slurm/pmi2.h> in use; each returns 0 or its own code. */
static struct pmi2 {
	void *lib;
	int (*Init)(int *spawned, int *size, int *rank, int *appnum);
	int (*Finalize)(void);
	int (*Abort)(int flag, const char *msg);
	int (*Job_GetId)(char *id, int size);
	int (*Info_GetJobAttr)(const char *name, char *value, int size, int *found);
	int (*KVS_Put)(const char *key, const char *value);
	int (*KVS_Fence)(void);
	int (*KVS_Get)(const char *job, int rank, const char *key, char *value, int size, int *len);
} pmi;

static char job_id[256];
static int rounds;                                           /* of publishing: makes every key unique */
static bool stuck;                                           /* a thread hangs in the library */
static pthread_mutex_t get_lock = PTHREAD_MUTEX_INITIALIZER; /* held in a get */

static int open_libpmi2(struct vfm_err *err)
{
	const struct {
		const char *name;
		void *fn;
	} sym[] = {{"PMI2_Init", &pmi.Init}, {"PMI2_Finalize", &pmi.Finalize}, {"PMI2_Abort", &pmi.Abort},
		{"PMI2_Job_GetId", &pmi.Job_GetId}, {"PMI2_Info_GetJobAttr", &pmi.Info_GetJobAttr},
		{"PMI2_KVS_Put", &pmi.KVS_Put}, {"PMI2_KVS_Fence", &pmi.KVS_Fence}, {"PMI2_KVS_Get", &pmi.KVS_Get}};

	pmi.lib = dlopen("libpmi2.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!pmi.lib)
		return vfm_fail(err, VFM_EENV,
			"this step has several tasks, but libpmi2.so.0 cannot be opened (%s); it comes with Slurm",
			dlerror());
	for (size_t i = 0; i < sizeof(sym) / sizeof(sym[0]); i++) {
		void *p = dlsym(pmi.lib, sym[i].name);

		if (!p)
			return vfm_fail(err, VFM_EENV, "libpmi2.so.0 has no %s", sym[i].name);
		memcpy(sym[i].fn, &p, sizeof(p));
	}
	return 0;
}

static int check_pmi2(int rc, const char *what, struct vfm_err *err)
{
	return rc ? vfm_fail(err, VFM_EENV, "%s failed with code %d", what, rc) : 0;
}

/* ---- the fence: a thread waits in it, so that the caller's wait has a limit ---- */

static void *wait_in_fence(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)pmi.KVS_Fence();
}

static int pass_fence(struct vfm_launch *l, struct vfm_err *err)
{
	double limit = vfm_launch_timeout();
	struct timespec until = vfm_time_after(CLOCK_MONOTONIC, limit);
	pthread_t thread;
	void *rc;

	if (pthread_create(&thread, NULL, wait_in_fence, NULL) != 0)
		return vfm_fail(err, VFM_EENV, "cannot start a thread");
	if (pthread_clockjoin_np(thread, &rc, CLOCK_MONOTONIC, &until) != 0) {
		stuck = true;
		pthread_detach(thread);
		return vfm_fail(err, VFM_EENV,
			"rank %d (%s) waited %.3g s for all %d ranks to start: one of them died or hangs (srun -K ends "
			"such a step at once)",
			l->rank, l->host, limit, l->size);
	}
	return check_pmi2((int)(intptr_t)rc, "PMI2_KVS_Fence", err);
}

/* ---- a put and a fence; gets ---- */

static void hex_encode(const unsigned char *p, size_t n, char *s)
{
	for (size_t i = 0; i < n; i++)
		snprintf(s + 2 * i, 3, "%02x", p[i]);
	s[2 * n] = '\0';
}

static bool hex_decode(const char *s, size_t n, unsigned char *p)
{
	if (strlen(s) != 2 * n)
		return false;
	for (size_t i = 0; i < n; i++) {
		unsigned v;

		if (sscanf(s + 2 * i, "%2x", &v) != 1)
			return false;
		p[i] = (unsigned char)v;
	}
	return true;
}

/* key "vfm-ROUND-RANK" */
static int kvs_put(int round, int rank, const void *p, size_t n, struct vfm_err *err)
{
	char key[64], value[VALUE_MAX + 1];

	snprintf(key, sizeof(key), "vfm-%d-%d", round, rank);
	hex_encode(p, n, value);
	return check_pmi2(pmi.KVS_Put(key, value), "PMI2_KVS_Put", err);
}

static int kvs_get(int round, int rank, void *p, size_t n, struct vfm_err *err)
{
	char key[64], value[VALUE_MAX + 1] = "";
	int len = 0;

	snprintf(key, sizeof(key), "vfm-%d-%d", round, rank);
	TRY(check_pmi2(pmi.KVS_Get(job_id, ID_NULL, key, value, sizeof(value) - 1, &len), "PMI2_KVS_Get", err));
	if (!hex_decode(value, n, p))
		return vfm_fail(
			err, VFM_EENV, "rank %d sent malformed data by PMI2: do all tasks run the same program?", rank);
	return 0;
}

static int pmi2_publish(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *err)
{
	if (stuck)
		return vfm_fail(err, VFM_EENV, "a previous PMI2 fence did not finish");
	TRY(kvs_put(++rounds, l->rank, mine, n, err));
	return pass_fence(l, err);
}

static int pmi2_fetch(struct vfm_launch *l, int rank, void *out, size_t n, struct vfm_err *err)
{
	int rc;

	(void)l;
	pthread_mutex_lock(&get_lock);
	rc = kvs_get(rounds, rank, out, n, err);
	pthread_mutex_unlock(&get_lock);
	return rc;
}

static void pmi2_end(struct vfm_launch *l)
{
	(void)l;
	if (!stuck)
		pmi.Finalize();
}

static void exit_at_once(void)
{
	_exit(0);
}

/* PMI2_Abort ends its process: a child calls it.  The child must not run this process's exit handlers, which may need
 * threads that a fork does not have. */
static void pmi2_abort(struct vfm_launch *l, int status, const char *why)
{
	char msg[256];
	bool locked = false;
	pid_t pid;

	(void)status;
	snprintf(msg, sizeof(msg), "rank %d: %s", l->rank, why);
	for (char *s = msg; *s; s++)
		if (*s == ';' || *s == '=' || (unsigned char)*s < 0x20)
			*s = ','; /* the separators of a PMI2 message */
	if (!stuck)
		usleep(ABORT_GRACE_MS * 1000); /* lets the other ranks report the failure and end themselves */
	/* The library has a lock of its own, which a child must not inherit from a thread in a get. */
	for (int ms = 0; !(locked = pthread_mutex_trylock(&get_lock) == 0) && ms < ABORT_GRACE_MS; ms += 10)
		usleep(10000);
	pid = fork();
	if (pid == 0) {
		atexit(exit_at_once); /* runs before the handlers of this process */
		pmi.Abort(1, msg);
		_exit(0);
	}
	for (int ms = 0; pid > 0 && waitpid(pid, NULL, WNOHANG) == 0; ms += 10) {
		if (ms == ABORT_GRACE_MS)
			kill(pid, SIGKILL);
		usleep(10000);
	}
	if (locked)
		pthread_mutex_unlock(&get_lock);
}

static const struct vfm_launch_table pmi2_table = {
	.name = "pmi2", .publish = pmi2_publish, .fetch = pmi2_fetch, .end = pmi2_end, .abort = pmi2_abort};

/* ---- placement ---- */

struct hello {
	char host[64];
	uint64_t mask;
};

/* Places the ranks by PMI_process_mapping, or else by equal host names.  Also compares the affinity masks of a node.
 * With a mapping, a rank fetches only the values of its node. */
static int find_nodes(struct vfm_launch *l, struct vfm_err *err)
{
	struct hello me = {.mask = vfm_launch_mask_hash()}, *all = vfm_calloc((size_t)l->size, sizeof(*all));
	bool mapped;
	char map[VALUE_MAX + 1] = "";
	int rc, found = 0, sharers = 0;

	memcpy(me.host, l->host, sizeof(me.host));
	rc = pmi.Info_GetJobAttr("PMI_process_mapping", map, sizeof(map) - 1, &found);
	mapped = rc == 0 && found && strlen(map) < VALUE_MAX - 1 && vfm_launch_mapping(map, l->size, l->node_of);
	TRY_OUT(pmi2_publish(l, &me, sizeof(me), err));
	for (int r = 0; r < l->size; r++)
		if (!mapped || l->node_of[r] == l->node_of[l->rank])
			TRY_OUT(pmi2_fetch(l, r, &all[r], sizeof(all[r]), err));
	for (int r = 0; !mapped && r < l->size; r++) {
		int k = 0;

		while (strncmp(all[k].host, all[r].host, sizeof(all[k].host)) != 0)
			k++;
		l->node_of[r] = k;
	}
	vfm_launch_place(l);
	for (int r = 0; r < l->size; r++)
		sharers += l->node_of[r] == l->node && all[r].mask == me.mask;
	vfm_launch_threads(l, sharers);
out:
	free(all);
	return rc;
}

int vfm_launch_pmi2(struct vfm_launch *l, const struct vfm_task *task, struct vfm_err *err)
{
	const char *restart = getenv("SLURM_RESTART_COUNT");
	int spawned = 0, app = 0;

	TRY(open_libpmi2(err));
	TRY(check_pmi2(pmi.Init(&spawned, &l->size, &l->rank, &app), "PMI2_Init", err));
	if (l->rank < 0 || l->rank >= l->size || l->size != task->count ||
		(task->number >= 0 && l->rank != task->number))
		return vfm_fail(err, VFM_EENV, "PMI2 says rank %d of %d, but this is task %lld of %lld", l->rank,
			l->size, (long long)task->number, (long long)task->count);
	TRY(check_pmi2(pmi.Job_GetId(job_id, sizeof(job_id)), "PMI2_Job_GetId", err));
	/* A requeued job keeps its id. */
	snprintf(l->job, sizeof(l->job), "%.40s%s%.10s", job_id, restart ? "r" : "", restart ? restart : "");
	for (char *s = l->job; *s; s++)
		if (*s == '/' || (unsigned char)*s <= ' ')
			*s = '-';
	l->node_of = vfm_calloc((size_t)l->size, sizeof(int));
	l->t = &pmi2_table;
	return find_nodes(l, err);
}
