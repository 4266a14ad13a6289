/* Messages between monitors: makes them, sends them to neighbours, and relays them through the tree, to rank 0 and to
 * all ranks (monitor_impl.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/host/monitor_impl.h"

enum { QUEUE_MAX = 1 << 20 }; /* bytes that wait for a neighbour; beyond, the calls of ranks are not sent */

/* ---- making messages ---- */

struct mon_msg vfm_mon_msg(enum mon_type type, int rank, const char *text)
{
	struct mon_msg m = {.h = {.magic = MSG_MAGIC, .type = type, .rank = rank}};

	if (text) {
		snprintf(m.text, sizeof(m.text), "%s", text);
		m.h.bytes = (uint32_t)strlen(m.text) + 1;
	}
	return m;
}

/* Those of a BEAT or STATE. */
static void store_calls(struct mon_peer *p, const struct mon_msg *m)
{
	p->n = (int)(m->h.bytes / sizeof(m->act[0]));
	p->act = vfm_realloc(p->act, (size_t)p->n + 1, sizeof(*p->act));
	memcpy(p->act, m->act, m->h.bytes);
}

struct mon_msg vfm_mon_calls(struct vfm_hjob *j, enum mon_type type)
{
	struct mon_msg m = vfm_mon_msg(type, j->rank, NULL);
	double now = vfm_now();
	int n = 0;

	pthread_mutex_lock(&j->lock);
	for (struct vfm_activity *d = j->activities; d && n < ACTS; d = d->next) {
		struct mon_act *a = &m.act[n];

		if (!atomic_load(&d->busy))
			continue;
		snprintf(a->name, sizeof(a->name), "%s", d->name);
		a->group = d->id;
		a->number = atomic_load(&d->number);
		a->bytes = atomic_load(&d->bytes);
		a->kind = atomic_load(&d->kind);
		a->age = now - atomic_load(&d->since);
		a->waits = atomic_load(&d->waits) ? now - atomic_load(&d->wait_since) : -1;
		a->peer = atomic_load(&d->peer);
		if (a->peer < 0) /* the next call has begun meanwhile */
			a->waits = -1;
		n++;
	}
	pthread_mutex_unlock(&j->lock);
	m.h.bytes = (uint32_t)((size_t)n * sizeof(m.act[0]));
	store_calls(&j->mon->peer[j->rank], &m);
	return m;
}

/* ---- connections ---- */

void vfm_mon_close(struct mon_peer *p)
{
	if (!p->conn)
		return;
	if (p->conn->fd >= 0)
		close(p->conn->fd);
	vfm_buf_release(&p->conn->out);
	free(p->conn);
	p->conn = NULL;
}

/* Sends what waits.  Returns false if the connection is closed. */
static bool flush_conn(struct mon_conn *c)
{
	while (c->fd >= 0 && c->out.len) {
		ssize_t k = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0)
			return errno == EAGAIN || errno == EINTR;
		memmove(c->out.data, c->out.data + k, c->out.len - (size_t)k);
		c->out.len -= (size_t)k;
	}
	return true;
}

void vfm_mon_post(struct mon_conn *c, const struct mon_msg *m)
{
	if (!c || (c->out.len > QUEUE_MAX && (m->h.type == BEAT || m->h.type == STATE)))
		return;
	vfm_buf_add(&c->out, m, sizeof(m->h) + m->h.bytes);
	flush_conn(c);
}

void vfm_mon_post_down(struct vfm_hjob *j, const struct mon_msg *m)
{
	const struct vfm_mon *mon = j->mon;

	for (int i = 0; i < mon->tree.n; i++)
		vfm_mon_post(mon->peer[mon->tree.child[i]].conn, m);
}

/* ---- relaying ---- */

bool vfm_mon_head_ok(const struct vfm_rank_tree *t, int from, const struct mon_head *h)
{
	size_t act = sizeof(struct mon_act);

	if (h->magic != MSG_MAGIC || h->rank < 0 || h->rank >= t->size)
		return false;
	switch (h->type) {
	case BEAT:
	case STATE:
		if (h->bytes % act || h->bytes > ACTS * act)
			return false;
		break;
	case SUSPECT:
	case FAIL:
		if (h->bytes == 0 || h->bytes > VFM_WHY_MAX)
			return false;
		break;
	case JOINED:
	case GOODBYE:
	case DIED:
	case PROBE:
		if (h->bytes)
			return false;
		break;
	default:
		return false;
	}
	if (h->type == BEAT)
		return h->rank == from;
	if (from == t->parent)
		return h->type == PROBE || h->type == FAIL;
	return h->type != PROBE && vfm_tree_is_above(t, from, h->rank);
}

static void terminate_strings(const struct vfm_hjob *j, struct mon_msg *m)
{
	if (m->h.type == SUSPECT || m->h.type == FAIL)
		m->text[m->h.bytes - 1] = '\0';
	for (size_t i = 0; m->h.type <= STATE && i < m->h.bytes / sizeof(m->act[0]); i++) {
		struct mon_act *a = &m->act[i];

		a->name[sizeof(a->name) - 1] = '\0';
		if (a->kind < 0 || a->kind >= VFM_C_KINDS)
			a->kind = VFM_C_BARRIER;
		if (a->peer < 0 || a->peer >= j->size)
			a->waits = -1;
	}
}

void vfm_mon_tell(struct vfm_hjob *j, const struct mon_msg *m)
{
	struct vfm_mon *mon = j->mon;
	struct mon_peer *p = &mon->peer[m->h.rank];

	if (m->h.type == STATE) {
		store_calls(p, m);
		p->told = vfm_now();
	} else if (m->h.type == JOINED) {
		p->joined = true;
	} else if (m->h.type == GOODBYE) {
		p->left = true;
		p->n = 0;
	}
	if (j->rank != 0) {
		vfm_mon_post(mon->peer[mon->tree.parent].conn, m);
	} else if (m->h.type == DIED && mon->dying < 0) {
		mon->dying = m->h.rank;
		mon->probed = 0;
	} else if (m->h.type == SUSPECT && mon->dying < 0 && !atomic_load(&j->failed)) {
		vfm_declare_failed(j, m->h.rank, m->text);
	} else if (m->h.type == FAIL) {
		vfm_announce_failure(j, m->text);
	}
}

void vfm_mon_report(struct vfm_hjob *j, enum mon_type type, int rank, const char *text)
{
	const struct mon_peer *p = &j->mon->peer[rank];
	struct mon_msg m = vfm_mon_msg(STATE, rank, NULL);

	if (type == DIED || type == SUSPECT) { /* rank 0 does not know the calls of all ranks */
		m.h.bytes = (uint32_t)((size_t)p->n * sizeof(*p->act));
		if (p->n)
			memcpy(m.act, p->act, m.h.bytes);
		vfm_mon_tell(j, &m);
	}
	m = vfm_mon_msg(type, rank, text);
	vfm_mon_tell(j, &m);
}

void vfm_report_failure(struct vfm_hjob *j, const char *why)
{
	struct vfm_mon *m = j->mon;

	if (j->rank == 0 || !m->peer[m->tree.parent].joined) {
		vfm_announce_failure(j, why);
		return;
	}
	vfm_mon_report(j, FAIL, j->rank, why);
	m->reported = vfm_now();
	snprintf(m->why, sizeof(m->why), "%s", why);
}

void vfm_mon_adopt(struct vfm_hjob *j, int r, int fd)
{
	struct mon_peer *p = &j->mon->peer[r];
	struct mon_msg m = vfm_mon_calls(j, BEAT);

	if (!p->conn)
		p->conn = vfm_calloc(1, sizeof(*p->conn));
	p->conn->fd = fd;
	p->joined = true;
	p->heard = vfm_now();
	vfm_mon_post(p->conn, &m);
	if (r == j->mon->tree.parent)
		return;
	j->mon->n_joined++;
	vfm_mon_report(j, JOINED, r, NULL);
	if (atomic_load(&j->failed)) {
		m = vfm_mon_msg(FAIL, j->rank, j->why);
		vfm_mon_post(p->conn, &m);
	}
}

static void handle_msg(struct vfm_hjob *j, int from, const struct mon_msg *m)
{
	struct vfm_mon *mon = j->mon;
	struct mon_msg mine;

	mon->peer[from].heard = vfm_now();
	mon->peer[from].suspect = false;
	if (m->h.type == BEAT) {
		store_calls(&mon->peer[from], m);
	} else if (m->h.type == PROBE) {
		vfm_mon_post_down(j, m);
		mine = vfm_mon_calls(j, STATE);
		vfm_mon_tell(j, &mine);
	} else if (from == mon->tree.parent) {
		vfm_announce_failure(j, m->text);
	} else {
		vfm_mon_tell(j, m);
	}
}

static bool have_all_left(const struct vfm_hjob *j, int below)
{
	for (int r = below; r < j->size; r++)
		if (!j->mon->peer[r].left && vfm_tree_is_above(&j->mon->tree, below, r))
			return false;
	return true;
}

/* The connection of a neighbour has closed.  A parent ends after its children. */
static void drop_peer(struct vfm_hjob *j, int r)
{
	vfm_mon_close(&j->mon->peer[r]);
	if (atomic_load(&j->failed))
		return;
	if (r == j->mon->tree.parent) {
		vfm_declare_failed(j, r, "died");
	} else if (!have_all_left(j, r)) {
		vfm_mon_report(j, DIED, r, NULL);
	}
}

static void read_conn(struct vfm_hjob *j, int r)
{
	struct mon_conn *c;

	while ((c = j->mon->peer[r].conn)) {
		size_t head = sizeof(c->in.h), want = c->have < head ? head : head + c->in.h.bytes;
		ssize_t k = recv(c->fd, (char *)&c->in + c->have, want - c->have, MSG_DONTWAIT);

		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (k > 0)
			c->have += (size_t)k;
		if (k <= 0 || (c->have == head && !vfm_mon_head_ok(&j->mon->tree, r, &c->in.h))) {
			drop_peer(j, r);
			return;
		}
		if (c->have < head || c->have < head + c->in.h.bytes)
			continue;
		c->have = 0;
		terminate_strings(j, &c->in);
		handle_msg(j, r, &c->in);
	}
}

void vfm_mon_serve(struct vfm_hjob *j, int r, bool writable)
{
	struct mon_peer *p = &j->mon->peer[r];
	const bool open = !p->conn || !writable || flush_conn(p->conn);

	read_conn(j, r); /* a neighbour says why it ends before it closes */
	if (!open && p->conn)
		drop_peer(j, r);
}
