#include "sim/world.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

struct sim_rank {
	pthread_cond_t turn;
	bool entered, left, waits;
	uint64_t seen; /* changes before it began to wait */
	char what[160];
};

struct vfm_sim_world {
	pthread_mutex_t lock;
	struct sim_rank *rank;
	int n, running; /* running: -1: none */
	int more_memory;
	uint64_t changes;              /* meetings that became complete */
	struct vfm_sim_meeting **slot; /* by group and number; a table of open addresses */
	size_t n_slots, cap;
	bool failed, full;
	char why[VFM_ERR_MAX];
};

struct vfm_sim_world *vfm_sim_world_new(int n, int more_memory)
{
	struct vfm_sim_world *w = vfm_calloc(1, sizeof(*w));

	*w = (struct vfm_sim_world){.n = n, .running = -1, .cap = 64, .more_memory = more_memory};
	pthread_mutex_init(&w->lock, NULL);
	w->rank = vfm_calloc((size_t)n, sizeof(*w->rank));
	for (int i = 0; i < n; i++)
		pthread_cond_init(&w->rank[i].turn, NULL);
	w->slot = vfm_calloc(w->cap, sizeof(*w->slot));
	return w;
}

void vfm_sim_world_free(struct vfm_sim_world *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->cap; i++)
		if (w->slot[i]) { /* after a failure */
			free(w->slot[i]->brought);
			free(w->slot[i]);
		}
	for (int i = 0; i < w->n; i++)
		pthread_cond_destroy(&w->rank[i].turn);
	pthread_mutex_destroy(&w->lock);
	free(w->slot);
	free(w->rank);
	free(w);
}

/* ---- turns ---- */

static bool can_run(const struct vfm_sim_world *w, int i)
{
	const struct sim_rank *r = &w->rank[i];

	return r->entered && !r->left && (!r->waits || r->seen != w->changes || w->failed);
}

/* Gives the turn to the next rank after `rank` that can run, if any; returns it, or -1. */
static int pass_turn(struct vfm_sim_world *w, int rank)
{
	w->running = -1;
	for (int k = 1; k <= w->n && w->running < 0; k++)
		if (can_run(w, (rank + k) % w->n))
			w->running = (rank + k) % w->n;
	if (w->running >= 0)
		pthread_cond_signal(&w->rank[w->running].turn);
	return w->running;
}

static void await_turn(struct vfm_sim_world *w, int rank)
{
	while (w->running != rank)
		pthread_cond_wait(&w->rank[rank].turn, &w->lock);
}

/* The ranks begin in their order, once all have entered. */
static void note_entry(struct vfm_sim_world *w, int rank)
{
	bool all = true;

	w->rank[rank].entered = true;
	for (int i = 0; i < w->n; i++)
		all = all && w->rank[i].entered;
	if (all)
		pass_turn(w, w->n - 1);
}

void vfm_sim_world_enter(struct vfm_sim_world *w, int rank)
{
	pthread_mutex_lock(&w->lock);
	note_entry(w, rank);
	await_turn(w, rank);
	pthread_mutex_unlock(&w->lock);
}

static void set_failed(struct vfm_sim_world *w, const char *why)
{
	if (!w->failed)
		snprintf(w->why, sizeof(w->why), "%s", why);
	w->failed = true;
}

void vfm_sim_world_give_up(struct vfm_sim_world *w, int rank, const char *why)
{
	pthread_mutex_lock(&w->lock);
	set_failed(w, why);
	w->rank[rank].left = true;
	note_entry(w, rank);
	pthread_mutex_unlock(&w->lock);
}

/* All that are left wait for one that never comes. */
static void report_deadlock(struct vfm_sim_world *w)
{
	char why[VFM_ERR_MAX];
	int n = snprintf(why, sizeof(why), "deadlock in the simulated job:");

	for (int i = 0; i < w->n && n < (int)sizeof(why) - 1; i++)
		if (!w->rank[i].left)
			n += snprintf(why + n, sizeof(why) - (size_t)n, " simulated rank %d waits for %s;", i,
				w->rank[i].what);
	if (n < (int)sizeof(why))
		why[n - 1] = '\0';
	set_failed(w, why);
}

void vfm_sim_world_leave(struct vfm_sim_world *w, int rank)
{
	bool others = false;

	pthread_mutex_lock(&w->lock);
	w->rank[rank].left = true;
	for (int i = 0; i < w->n; i++)
		others |= !w->rank[i].left;
	if (pass_turn(w, rank) < 0 && others) {
		report_deadlock(w);
		pass_turn(w, rank);
	}
	pthread_mutex_unlock(&w->lock);
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

void vfm_sim_world_fail(struct vfm_sim_world *w, int rank, const char *why)
{
	char text[VFM_ERR_MAX];

	snprintf(text, sizeof(text), "simulated rank %d failed: %s", rank, why);
	pthread_mutex_lock(&w->lock);
	set_failed(w, text);
	pthread_mutex_unlock(&w->lock);
}

int vfm_sim_world_wait(struct vfm_sim_world *w, int rank, const char *what, struct vfm_err *err)
{
	struct sim_rank *r = &w->rank[rank];

	TRY(vfm_sim_world_check(w, err));
	pthread_mutex_lock(&w->lock);
	snprintf(r->what, sizeof(r->what), "%s", what);
	r->waits = true;
	r->seen = w->changes;
	if (pass_turn(w, rank) < 0) {
		report_deadlock(w);
		pass_turn(w, rank);
	}
	await_turn(w, rank);
	r->waits = false;
	pthread_mutex_unlock(&w->lock);
	return vfm_sim_world_check(w, err);
}

void vfm_sim_world_yield(struct vfm_sim_world *w, int rank)
{
	pthread_mutex_lock(&w->lock);
	pass_turn(w, rank); /* to itself, if no other can run */
	await_turn(w, rank);
	pthread_mutex_unlock(&w->lock);
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
		*m = vfm_calloc(1, sizeof(**m));
		**m = (struct vfm_sim_meeting){.group = group, .number = number, .n = n};
		(*m)->brought = vfm_calloc((size_t)n, sizeof(void *));
		w->n_slots++;
	}
	(*m)->brought[place] = brought;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		(*m)->at[e] = fmax((*m)->at[e], at[e]);
	if (++(*m)->came == n)
		w->changes++;
	return *m;
}

/* Closes the gap of a removed entry: those behind it move up to where a search finds them. */
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
	free(m->brought);
	free(m);
}
