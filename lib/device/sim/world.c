/* world.c - switches between the coroutines of ranks, lets them meet, and detects deadlock. */
#include "device/sim/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/hash.h"

enum { STACK = 8 << 20 };

struct sim_rank {
	ucontext_t at; /* where it continues */
	void *stack;   /* behind a page that faults */
	void *self;
	bool silent, left, waits;
	bool met;              /* one of its meetings has become complete since it began to wait */
	const char *what, *of; /* vfm_sim_world_wait */
};

struct vfm_sim_world {
	struct sim_rank *rank;
	int n, running;
	int more_memory;
	void (*fn)(void *self);
	ucontext_t caller;             /* of vfm_sim_world_run */
	struct vfm_sim_meeting **slot; /* by group and number; a table of open addresses */
	size_t n_slots, cap;
	bool failed, full;
	char why[VFM_ERR_MAX];
};

static _Thread_local struct vfm_sim_world *current;

struct vfm_sim_world *vfm_sim_world_new(int n, int more_memory)
{
	struct vfm_sim_world *w = vfm_calloc(1, sizeof(*w));

	*w = (struct vfm_sim_world){.n = n, .cap = 64, .more_memory = more_memory};
	w->rank = vfm_calloc((size_t)n, sizeof(*w->rank));
	w->slot = vfm_calloc(w->cap, sizeof(*w->slot));
	return w;
}

void vfm_sim_world_free(struct vfm_sim_world *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->cap; i++)
		free(w->slot[i]); /* after a failure */
	free(w->slot);
	free(w->rank);
	free(w);
}

void *vfm_sim_world_self(void)
{
	return current->rank[current->running].self;
}

/* ---- turns ---- */

/* Returns the next rank after the running one that can run, which may be itself; -1: none. */
static int find_next_rank(const struct vfm_sim_world *w)
{
	for (int k = 1; k <= w->n; k++) {
		const struct sim_rank *r = &w->rank[(w->running + k) % w->n];

		if (!r->left && (!r->waits || r->met || w->failed))
			return (w->running + k) % w->n;
	}
	return -1;
}

/* Returns when it is this rank's turn again. */
static void switch_to_rank(struct vfm_sim_world *w, int next)
{
	struct sim_rank *from = &w->rank[w->running];

	if (next == w->running)
		return;
	from->silent = vfm_log_thread_silent();
	w->running = next;
	swapcontext(&from->at, &w->rank[next].at);
	vfm_log_set_thread_silent(from->silent);
}

static void set_failed(struct vfm_sim_world *w, const char *why)
{
	if (!w->failed)
		snprintf(w->why, sizeof(w->why), "%s", why);
	w->failed = true;
}

/* All that are left wait for one that never comes. */
static void report_deadlock(struct vfm_sim_world *w)
{
	char why[VFM_ERR_MAX];
	int n = snprintf(why, sizeof(why), "deadlock in the simulated job:");

	for (int i = 0; i < w->n && n < (int)sizeof(why) - 1; i++)
		if (!w->rank[i].left)
			n += snprintf(why + n, sizeof(why) - (size_t)n, " simulated rank %d waits for %s %s;", i,
				w->rank[i].what, w->rank[i].of);
	if (n < (int)sizeof(why))
		why[n - 1] = '\0';
	set_failed(w, why);
}

/* Runs the next rank that can run.  If none can but some remain, the job fails and they continue. */
static void pass_turn(struct vfm_sim_world *w)
{
	bool any = false;
	int next = find_next_rank(w);

	for (int i = 0; i < w->n && next < 0; i++)
		any |= !w->rank[i].left;
	if (any) {
		report_deadlock(w);
		next = find_next_rank(w);
	}
	if (next >= 0)
		switch_to_rank(w, next);
}

/* The begin of a rank, and its end, when another continues. */
static void begin_rank(void)
{
	struct vfm_sim_world *w = current;

	vfm_log_set_thread_silent(w->rank[w->running].silent);
	w->fn(w->rank[w->running].self);
	w->rank[w->running].left = true;
	pass_turn(w);
	setcontext(&w->caller); /* all have left */
}

static int map_stack(struct sim_rank *r, size_t page)
{
	char *p = mmap(NULL, page + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -1;
	r->stack = p + page;
	return mprotect(r->stack, STACK, PROT_READ | PROT_WRITE);
}

int vfm_sim_world_run(struct vfm_sim_world *w, void (*fn)(void *self), void *const *self, struct vfm_err *err)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	bool silent = vfm_log_thread_silent();
	int rc = 0;

	for (int i = 0; i < w->n && rc == 0; i++) {
		struct sim_rank *r = &w->rank[i];

		r->self = self[i];
		r->silent = silent;
		if (map_stack(r, page) < 0) {
			rc = vfm_fail_errno(err, VFM_EENV, "no memory for the stack of simulated rank %d", i);
			break;
		}
		getcontext(&r->at);
		r->at.uc_stack = (stack_t){.ss_sp = r->stack, .ss_size = STACK};
		makecontext(&r->at, begin_rank, 0);
	}
	w->fn = fn;
	current = w;
	if (rc == 0)
		swapcontext(&w->caller, &w->rank[0].at);
	current = NULL;
	vfm_log_set_thread_silent(silent);
	for (int i = 0; i < w->n; i++)
		if (w->rank[i].stack)
			munmap((char *)w->rank[i].stack - page, page + STACK);
	return rc;
}

void vfm_sim_world_set_full(struct vfm_sim_world *w)
{
	w->full = true;
}

int vfm_sim_world_more_memory(const struct vfm_sim_world *w)
{
	return w ? w->more_memory : 1;
}

bool vfm_sim_world_is_full(const struct vfm_sim_world *w)
{
	return w->full;
}

int vfm_sim_world_check(struct vfm_sim_world *w, struct vfm_err *err)
{
	return w->failed ? vfm_fail(err, VFM_EENV, "%s", w->why) : 0;
}

void vfm_sim_world_fail(struct vfm_sim_world *w, const char *why)
{
	char text[VFM_ERR_MAX];

	snprintf(text, sizeof(text), "simulated rank %d failed: %s", w->running, why);
	set_failed(w, text);
}

int vfm_sim_world_wait(struct vfm_sim_world *w, const char *what, const char *of, struct vfm_err *err)
{
	struct sim_rank *r = &w->rank[w->running];

	TRY(vfm_sim_world_check(w, err));
	r->what = what;
	r->of = of;
	r->waits = true;
	r->met = false;
	pass_turn(w);
	r->waits = false;
	return vfm_sim_world_check(w, err);
}

void vfm_sim_world_yield(struct vfm_sim_world *w)
{
	pass_turn(w); /* to itself, if no other can run */
}

/* ---- meetings ---- */

static size_t find_slot(const struct vfm_sim_world *w, uint64_t group, uint64_t number)
{
	uint64_t key[2] = {group, number};
	size_t i = vfm_fnv64(key, sizeof(key)) & (w->cap - 1);

	while (w->slot[i] && (w->slot[i]->group != group || w->slot[i]->number != number))
		i = (i + 1) & (w->cap - 1);
	return i;
}

static void grow_meeting_slots(struct vfm_sim_world *w)
{
	struct vfm_sim_world old = *w;

	if (2 * (w->n_slots + 1) <= w->cap)
		return;
	w->cap *= 2;
	w->slot = vfm_calloc(w->cap, sizeof(*w->slot));
	for (size_t i = 0; i < old.cap; i++)
		if (old.slot[i])
			w->slot[find_slot(w, old.slot[i]->group, old.slot[i]->number)] = old.slot[i];
	free(old.slot);
}

struct vfm_sim_meeting *vfm_sim_meet(struct vfm_sim_world *w, uint64_t group, uint64_t number, int n, int place,
	const double at[VFM_ESTIMATES], const void *brought)
{
	struct vfm_sim_meeting **m;

	grow_meeting_slots(w);
	m = &w->slot[find_slot(w, group, number)];
	if (!*m) {
		*m = vfm_calloc(1, sizeof(**m) + (size_t)n * sizeof((*m)->comer[0]));
		(*m)->group = group;
		(*m)->number = number;
		(*m)->n = n;
		w->n_slots++;
	}
	(*m)->comer[place] = (struct vfm_sim_comer){w->running, brought};
	for (int e = 0; e < VFM_ESTIMATES; e++)
		(*m)->at[e] = fmax((*m)->at[e], at[e]);
	if (++(*m)->came == n)
		for (int i = 0; i < n; i++)
			w->rank[(*m)->comer[i].rank].met = true;
	return *m;
}

/* Closes the gap of a removed entry: those after it move up to where a search finds them. */
static void remove_slot(struct vfm_sim_world *w, size_t i)
{
	w->slot[i] = NULL;
	w->n_slots--;
	for (size_t k = (i + 1) & (w->cap - 1); w->slot[k]; k = (k + 1) & (w->cap - 1)) {
		struct vfm_sim_meeting *m = w->slot[k];

		w->slot[k] = NULL;
		w->slot[find_slot(w, m->group, m->number)] = m;
	}
}

void vfm_sim_part(struct vfm_sim_world *w, struct vfm_sim_meeting *m)
{
	if (++m->left < m->n)
		return;
	remove_slot(w, find_slot(w, m->group, m->number));
	free(m);
}
