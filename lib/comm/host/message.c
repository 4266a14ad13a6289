/* Makes messages between monitors and sends them to neighbours (monitor_impl.h). */
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

void vfm_mon_store_calls(struct mon_peer *p, const struct mon_msg *m)
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
	vfm_mon_store_calls(&j->mon->peer[j->rank], &m);
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

bool vfm_mon_flush(struct mon_conn *c)
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
	vfm_mon_flush(c);
}

void vfm_mon_post_down(struct vfm_hjob *j, const struct mon_msg *m)
{
	const struct vfm_mon *mon = j->mon;

	for (int i = 0; i < mon->tree.n; i++)
		vfm_mon_post(mon->peer[mon->tree.child[i]].conn, m);
}
