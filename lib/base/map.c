/* map.c - maps files read-only; a SIGBUS handler names the truncated file and ends the process. */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

/* ---- guards ---- */

/* A node is never freed, because a signal handler may be reading the list.  A released node has size 0 and is reused;
 * so the list is as long as the largest number of guards at one time. */
struct vfm_map_guard {
	struct vfm_map_guard *next; /* constant once the node is in the list */
	_Atomic(uintptr_t) data;
	atomic_size_t size; /* written last, cleared first */
	atomic_bool used;
	_Atomic(char *) message;
};

static _Atomic(struct vfm_map_guard *) guards;

static struct vfm_map_guard *acquire_guard(void)
{
	struct vfm_map_guard *g;
	bool used = false;

	for (g = guards; g; g = g->next, used = false)
		if (atomic_compare_exchange_strong(&g->used, &used, true))
			return g;
	g = vfm_calloc(1, sizeof(*g));
	g->used = true;
	g->next = guards;
	while (!atomic_compare_exchange_weak(&guards, &g->next, g))
		;
	return g;
}

/* message: what the handler prints; copied. */
static struct vfm_map_guard *guard_range(const void *data, size_t size, const char *message)
{
	struct vfm_map_guard *g = acquire_guard();

	g->message = vfm_strdup(message);
	g->data = (uintptr_t)data;
	g->size = size;
	return g;
}

static void release_guard(struct vfm_map_guard *g)
{
	if (!g)
		return;
	g->size = 0;
	free(atomic_exchange(&g->message, NULL));
	g->used = false;
}

/* Runs in the thread that accessed the memory; only async-signal-safe calls. */
static void handle_bus_fault(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	int saved = errno;

	(void)context;
	for (struct vfm_map_guard *g = guards; g; g = g->next) {
		uintptr_t lo = g->data;
		size_t size = g->size;
		const char *message = g->message;

		if (at < lo || at - lo >= size || !message)
			continue;
		vfm_log_from_signal(message);
		_exit(-VFM_EENV);
	}
	signal(sig, SIG_DFL); /* the access is repeated and ends the process */
	errno = saved;
}

void vfm_map_catch_faults(void)
{
	struct sigaction a = {.sa_sigaction = handle_bus_fault, .sa_flags = SA_SIGINFO};

	sigemptyset(&a.sa_mask);
	sigaction(SIGBUS, &a, NULL);
}

/* ---- mappings ---- */

static struct vfm_map_stamp stamp_of(const struct stat *st)
{
	return (struct vfm_map_stamp){st->st_mtim, st->st_ctim};
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static int map_file(struct vfm_map *m, const struct stat *st, struct vfm_err *err)
{
	char *message;
	void *p;

	if (!st->st_size)
		return 0;
	p = mmap(NULL, (size_t)st->st_size, PROT_READ, MAP_PRIVATE, m->fd, 0);
	if (p == MAP_FAILED)
		return vfm_fail_errno(err, VFM_EENV, "cannot map '%s'", m->path);
	m->data = p;
	m->size = (size_t)st->st_size;
	message = vfm_strfmt("cannot read '%s': it was truncated while it was in use, or its disk failed", m->path);
	m->guard = guard_range(p, m->size, message);
	free(message);
	return 0;
}

int vfm_map_open(struct vfm_map *m, const char *path, struct vfm_err *err)
{
	struct stat st;
	int rc;

	*m = (struct vfm_map){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)}; /* a FIFO must not block */
	if (m->fd < 0) {
		*m = (struct vfm_map){0};
		return vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", path);
	}
	m->path = vfm_strdup(path);
	pthread_mutex_init(&m->lock, NULL);
	if (fstat(m->fd, &st) != 0)
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot stat '%s'", path);
	else if (!S_ISREG(st.st_mode))
		rc = vfm_fail(err, VFM_EINPUT, "'%s' is not a regular file", path);
	else
		rc = map_file(m, &st, err);
	if (rc < 0)
		vfm_map_close(m);
	else
		m->stamp = stamp_of(&st);
	return rc;
}

void vfm_map_close(struct vfm_map *m)
{
	release_guard(m->guard);
	if (m->data)
		munmap((void *)(uintptr_t)m->data, m->size);
	if (m->path) {
		close(m->fd);
		pthread_mutex_destroy(&m->lock);
	}
	free(m->path);
	*m = (struct vfm_map){0};
}

/* The caller holds the lock. */
static int check_stamp(struct vfm_map *m, int (*verify)(void *ctx, struct vfm_err *err), void *ctx, struct vfm_err *err)
{
	struct vfm_map_stamp now;
	struct stat st;

	if (fstat(m->fd, &st) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot stat '%s'", m->path);
	if ((uint64_t)st.st_size != m->size)
		return vfm_fail(err, VFM_EENV, "'%s' changed while it was in use: it had %zu bytes, now it has %lld",
			m->path, m->size, (long long)st.st_size);
	now = stamp_of(&st);
	if (same_time(now.modified, m->stamp.modified) && same_time(now.changed, m->stamp.changed))
		return 0;
	if (!verify)
		return vfm_fail(err, VFM_EENV, "'%s' changed while it was in use", m->path);
	TRY(verify(ctx, err));
	m->stamp = now;
	return 0;
}

int vfm_map_check(struct vfm_map *m, int (*verify)(void *ctx, struct vfm_err *err), void *ctx, struct vfm_err *err)
{
	int rc;

	pthread_mutex_lock(&m->lock);
	rc = check_stamp(m, verify, ctx, err);
	pthread_mutex_unlock(&m->lock);
	return rc;
}
