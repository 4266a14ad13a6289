/* param_store.c - stores of base weights: their memory, and the copies that are fetched for a unit that runs. */
/* A store holds this rank's shards of the base weights of a unit, one bucket after the other, in device memory, pinned
 * host memory or a mapped file.  A store in host memory is copied to a buffer on the device before the unit runs
 * (vfm_unit_fetch), on the fetch stream, while the previous unit of the order runs.  Two buffers exist at a time.
 *
 * The device cannot address a mapped file.  The fetch stream copies it to a pinned bounce buffer on a host thread.
 * Code that reads or writes the weights outside of units opens the store: its contents are in the bounce buffer until
 * another one is opened, or until vfm_params_close_store. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/coll/comm_nodes.h"
#include "io/host_memory.h"
#include "net/nn/param_impl.h"

/* ---- memory ---- */

/* Returns a file without a name; -1: failed.  Some file systems need a name at first. */
static int open_scratch(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char *path;

	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
		return fd;
	path = vfm_strfmt("%s/vfm-weights-XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	free(path);
	return fd;
}

/* Maps a new file; its pages may be written to the disk. */
static void *map_scratch(size_t bytes, struct vfm_err *err)
{
	const char *tmp = getenv("TMPDIR"), *dir = tmp && *tmp ? tmp : "/var/tmp";
	int fd = open_scratch(dir), rc;
	void *p = MAP_FAILED;

	if (fd < 0) {
		vfm_fail_errno(err, VFM_EENV,
			"cannot create a file in '%s' (TMPDIR) for weights that train.host_gib leaves no memory to",
			dir);
		return NULL;
	}
	rc = posix_fallocate(fd, 0, (off_t)bytes); /* a full disk is an error now, not a signal later */
	if (rc == 0)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	errno = rc ? rc : errno;
	if (p == MAP_FAILED)
		vfm_fail_errno(err, VFM_EENV, "no space for %zu bytes of weights in '%s' (TMPDIR)", bytes, dir);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

static void free_store(struct vfm_params *ps, enum vfm_store_place place, char *p, int64_t bytes)
{
	struct vfm_dev *d = ps->stream->dev;

	if (!p)
		return;
	if (place == VFM_STORE_DEVICE)
		vfm_dev_free(ps->stream, p, (size_t)bytes);
	else if (place == VFM_STORE_PINNED)
		d->t->free_host(d, p, (size_t)bytes);
	else
		munmap(p, (size_t)bytes);
}

static char *alloc_store(struct vfm_params *ps, enum vfm_store_place place, int64_t bytes, struct vfm_err *err)
{
	struct vfm_dev *d = ps->stream->dev;

	return place == VFM_STORE_DEVICE    ? vfm_dev_alloc(ps->stream, (size_t)bytes, "base weights", err)
		: place == VFM_STORE_PINNED ? d->t->alloc_host(d, (size_t)bytes, "base weights", err)
					    : map_scratch((size_t)bytes, err);
}

/* Waits for fetches and for ops that use host memory. */
static int sync_stores(const struct vfm_params *ps, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;

	TRY(t->stream_sync(ps->stream, err));
	return ps->fetch_stream ? t->stream_sync(ps->fetch_stream, err) : 0;
}

/* Moves the contents of a store; the new memory of a store without any is zeroed. */
static int move_store(struct vfm_unit *x, enum vfm_store_place place, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	const struct vfm_dev_table *t = ps->stream->dev->t;
	char *p = alloc_store(ps, place, x->store_bytes, err);
	int rc;

	if (!p)
		return VFM_EENV;
	if (!x->store)
		rc = place == VFM_STORE_MAPPED ? 0 : t->zero(ps->stream, p, (size_t)x->store_bytes, err);
	else if (place == VFM_STORE_DEVICE)
		rc = t->to_device(ps->stream, p, x->store, (size_t)x->store_bytes, err);
	else if (x->place == VFM_STORE_DEVICE)
		rc = t->to_host(ps->stream, p, x->store, (size_t)x->store_bytes, err);
	else if (!ps->stream->dev->no_data)
		rc = (memcpy(p, x->store, (size_t)x->store_bytes), 0);
	else
		rc = 0;
	if (rc == 0 && x->store)
		rc = sync_stores(ps, err);
	if (rc < 0) {
		free_store(ps, place, p, x->store_bytes);
		return rc;
	}
	free_store(ps, x->place, x->store, x->store_bytes);
	x->store = p;
	x->place = place;
	return 0;
}

/* ---- the bounce buffer ---- */

/* Copies the contents of the open store back to its file. */
int vfm_params_close_store(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_unit *x = ps->open;

	if (!x)
		return 0;
	TRY(sync_stores(ps, err));
	memcpy(x->store, ps->bounce, (size_t)x->store_bytes);
	ps->open = NULL;
	return 0;
}

static int reserve_bounce(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_dev *d = ps->stream->dev;

	for (int u = 0; u < ps->units && !ps->bounce; u++)
		if (ps->unit[u].store_bytes > ps->bounce_bytes)
			ps->bounce_bytes = ps->unit[u].store_bytes;
	if (!ps->bounce)
		ps->bounce = d->t->alloc_host(d, (size_t)ps->bounce_bytes, "copies of mapped weights", err);
	return ps->bounce ? 0 : VFM_EENV;
}

int vfm_bucket_open(struct vfm_params *ps, const struct vfm_param_bucket *s, char **w, struct vfm_err *err)
{
	struct vfm_unit *x = &ps->unit[s->first_unit];

	*w = s->w;
	if (!s->base || !ps->stores)
		return 0;
	if (x->place == VFM_STORE_MAPPED && ps->open != x) {
		TRY(vfm_params_close_store(ps, err));
		TRY(reserve_bounce(ps, err));
		TRY(sync_stores(ps, err));
		memcpy(ps->bounce, x->store, (size_t)x->store_bytes);
		ps->open = x;
	}
	*w = (x->place == VFM_STORE_MAPPED ? ps->bounce : x->store) + s->store_off;
	return 0;
}

/* ---- fetching ---- */

struct bounce_copy {
	char *to;
	const char *from;
	size_t bytes;
};

static int copy_to_bounce(void *arg, struct vfm_err *err)
{
	const struct bounce_copy *c = arg;

	(void)err;
	memcpy(c->to, c->from, c->bytes);
	return 0;
}

int vfm_unit_fetch(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	const struct vfm_dev_table *t = ps->stream->dev->t;
	size_t bytes = (size_t)x->store_bytes;
	const char *from = x->store;

	if (!vfm_unit_fetches(x))
		return 0;
	if (x->place == VFM_STORE_MAPPED)
		TRY(vfm_params_close_store(ps, err));
	x->fetched = vfm_dev_alloc(ps->stream, bytes, "fetched weights", err);
	if (!x->fetched)
		return VFM_EENV;
	/* also orders the copy after the ops that used this memory before */
	TRY(vfm_stream_follow(ps->fetch_stream, ps->stream, &ps->fork, err));
	if (x->place == VFM_STORE_MAPPED) {
		struct bounce_copy c = {ps->bounce, x->store, bytes};

		TRY(t->host_call(ps->fetch_stream, copy_to_bounce, &c, sizeof(c), err));
		from = ps->bounce;
	}
	TRY(t->to_device(ps->fetch_stream, x->fetched, from, bytes, err));
	if (!x->fetch_done)
		x->fetch_done = t->event_new(ps->stream->dev, err);
	return x->fetch_done ? t->event_record(x->fetch_done, ps->fetch_stream, err) : VFM_EENV;
}

void vfm_unit_drop_fetched(struct vfm_unit *x)
{
	if (x->fetched)
		vfm_dev_free(x->ps->stream, x->fetched, (size_t)x->store_bytes);
	x->fetched = NULL;
}

char *vfm_bucket_stored(const struct vfm_params *ps, const struct vfm_param_bucket *s)
{
	const struct vfm_unit *x = &ps->unit[s->first_unit];

	if (!s->base || !ps->stores)
		return s->w;
	return (x->place == VFM_STORE_DEVICE ? x->store : x->fetched) + s->store_off;
}

/* ---- placement ---- */

double vfm_params_host_memory(const struct vfm_mesh *m, const struct vfm_dev *d)
{
	const double most = 0.7;
	const int here = vfm_comm_node(m->world, m->world->rank);
	int local = 0;

	if (vfm_dev_predicts(d))
		return d->host_total > 0 ? most * (double)d->host_total : INFINITY;
	for (int r = 0; r < m->world->size; r++)
		local += vfm_comm_node(m->world, r) == here;
	return most * vfm_host_memory() / local;
}

/* Returns the bytes of pinned memory that this rank may use for stores.  Files are not predicted. */
static double host_room(const struct vfm_params *ps)
{
	if (vfm_dev_predicts(ps->stream->dev))
		return INFINITY;
	return ps->host_limit > 0 ? ps->host_limit : vfm_params_host_memory(ps->mesh, ps->stream->dev);
}

/* Moves a store to host memory: pinned if it fits in *room, which it then takes, and if the host has it; else a file.
 */
static int move_to_host(struct vfm_unit *x, double *room, struct vfm_err *err)
{
	const bool fits = (double)x->store_bytes <= *room, is_pinned = x->store && x->place == VFM_STORE_PINNED;

	if (fits && (is_pinned || move_store(x, VFM_STORE_PINNED, NULL) == 0)) {
		*room -= (double)x->store_bytes;
		return 0;
	}
	if (x->store && x->place == VFM_STORE_MAPPED)
		return 0;
	TRY(reserve_bounce(x->ps, err));
	return move_store(x, VFM_STORE_MAPPED, err);
}

/* Sets where ops find resident weights, and which units are fetched. */
static void set_resident(struct vfm_unit *x)
{
	struct vfm_params *ps = x->ps;

	for (int i = ps->n_trained; i < ps->n_buckets; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];

		if (!s->base || s->first_unit != x->id || s->stored != VFM_FROZEN_SAME ||
			s->sharding == VFM_SHARDING_FULL)
			continue;
		s->full = x->place == VFM_STORE_DEVICE ? x->store + s->store_off : NULL;
		vfm_bucket_set_weights(ps, s, s->full);
	}
}

int64_t vfm_params_stores(const struct vfm_params *ps, double *most)
{
	int64_t n = 0;

	*most = 0;
	for (int u = 0; u < ps->units; u++) {
		n += ps->unit[u].store_bytes > 0;
		*most = fmax(*most, (double)ps->unit[u].store_bytes);
	}
	return n;
}

/* Moves the stores to the device, or to host memory.  Device memory comes first: pinned memory becomes free. */
static int move_stores(struct vfm_params *ps, int64_t n, bool to_host, struct vfm_err *err)
{
	double room = host_room(ps) - ps->other_pinned, most;
	int64_t of = vfm_params_stores(ps, &most), i = 0;

	for (int u = 0; u < ps->units; u++) {
		struct vfm_unit *x = &ps->unit[u];

		if (!x->store_bytes)
			continue;
		i++;
		if ((i * n / of > (i - 1) * n / of) != to_host)
			continue;
		if (to_host)
			TRY(move_to_host(x, &room, err));
		else if (!x->store || x->place != VFM_STORE_DEVICE)
			TRY(move_store(x, VFM_STORE_DEVICE, err));
		set_resident(x);
	}
	return 0;
}

int vfm_params_place(struct vfm_params *ps, int64_t n, struct vfm_err *err)
{
	double most;
	int64_t of;

	if (!ps->stores)
		return 0;
	TRY(vfm_params_wait(ps, err));
	TRY(vfm_params_drop_units(ps, err));
	TRY(vfm_params_close_store(ps, err));
	vfm_dev_drop_copies(ps->stream);
	if (!ps->fetch_stream)
		ps->fetch_stream = ps->stream->dev->t->stream_new(ps->stream->dev, true, err);
	if (!ps->fetch_stream)
		return VFM_EENV;
	of = vfm_params_stores(ps, &most);
	n = n < of ? n : of;
	TRY(move_stores(ps, n, false, err));
	TRY(move_stores(ps, n, true, err));
	ps->host_units = n;
	vfm_units_guess_order(ps);
	return 0;
}

/* ---- another network ---- */

static double own_pinned(const struct vfm_params *ps)
{
	double bytes = 0;

	for (int u = 0; u < ps->units; u++)
		if (ps->unit[u].store && ps->unit[u].place == VFM_STORE_PINNED)
			bytes += (double)ps->unit[u].store_bytes;
	return bytes;
}

int vfm_params_copy_store(
	struct vfm_params *ps, int unit, bool on_device, struct vfm_other_store *x, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;
	const struct vfm_unit *u = &ps->unit[unit];
	const size_t bytes = (size_t)u->store_bytes;

	*x = (struct vfm_other_store){.bytes = bytes, .place = VFM_STORE_PINNED};
	if (!bytes)
		return 0;
	TRY(vfm_params_close_store(ps, err));
	if (on_device && u->place == VFM_STORE_DEVICE) {
		x->place = VFM_STORE_DEVICE;
		x->p = alloc_store(ps, VFM_STORE_DEVICE, u->store_bytes, err);
		return x->p ? t->to_host(ps->stream, x->p, u->store, bytes, err) : VFM_EENV;
	}
	if (ps->other_pinned + own_pinned(ps) + (double)bytes <= host_room(ps))
		x->p = alloc_store(ps, VFM_STORE_PINNED, u->store_bytes, NULL);
	if (x->p) {
		ps->other_pinned += (double)bytes;
	} else {
		TRY(reserve_bounce(ps, err)); /* to fetch it, once it is this network's */
		x->place = VFM_STORE_MAPPED;
		x->p = alloc_store(ps, VFM_STORE_MAPPED, u->store_bytes, err);
	}
	if (!x->p)
		return VFM_EENV;
	if (u->place == VFM_STORE_DEVICE)
		TRY(t->to_host(ps->stream, x->p, u->store, bytes, err));
	else if (!ps->stream->dev->no_data)
		memcpy(x->p, u->store, bytes);
	return 0;
}

void vfm_params_free_store(struct vfm_params *ps, int unit, struct vfm_other_store *x)
{
	if (x->p && x->place == VFM_STORE_PINNED)
		ps->other_pinned -= (double)ps->unit[unit].store_bytes;
	free_store(ps, x->place, x->p, ps->unit[unit].store_bytes);
	x->p = NULL;
}

size_t vfm_params_swap_store(struct vfm_params *ps, int unit, struct vfm_other_store *x, void **own)
{
	struct vfm_unit *u = &ps->unit[unit];
	const struct vfm_other_store mine = {u->store, x->bytes, u->place};

	*own = u->store;
	if (!x->p || u->place == VFM_STORE_DEVICE)
		return x->p ? (size_t)u->store_bytes : 0;
	ps->other_pinned +=
		((mine.place == VFM_STORE_PINNED) - (x->place == VFM_STORE_PINNED)) * (double)u->store_bytes;
	u->store = x->p;
	u->place = x->place;
	*x = mine;
	return 0;
}

void vfm_params_stores_release(struct vfm_params *ps)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;

	if (!ps->stores)
		return;
	if (ps->fetch_stream)
		t->stream_sync(ps->fetch_stream, &(struct vfm_err){0});
	if (ps->unit)
		t->stream_sync(ps->stream, &(struct vfm_err){0}); /* ops that read host memory */
	for (int u = 0; ps->unit && u < ps->units; u++) {
		struct vfm_unit *x = &ps->unit[u];

		vfm_unit_drop_fetched(x);
		free_store(ps, x->place, x->store, x->store_bytes);
		x->store = NULL;
		if (x->fetch_done)
			t->event_free(x->fetch_done);
	}
	if (ps->bounce)
		t->free_host(ps->stream->dev, ps->bounce, (size_t)ps->bounce_bytes);
	t->stream_free(ps->fetch_stream);
	ps->bounce = NULL;
	ps->fetch_stream = NULL;
}
