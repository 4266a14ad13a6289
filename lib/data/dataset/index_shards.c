/* index_shards.c - opens the shards of an index: next to it, in the folders of a join, or in a cache. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/index_impl.h"
#include "data/dataset/shard_cache.h"

/* The path of a folder without links and "..", as far as it exists.  The caller frees it. */
static char *real_folder(const char *dir)
{
	char *real = realpath(dir, NULL);

	if (!real)
		real = vfm_strdup(dir);
	for (size_t n = strlen(real); n > 1 && real[n - 1] == '/'; n--)
		real[n - 1] = 0;
	return real;
}

int vfm_index_set_cache(struct vfm_index *ix, struct vfm_shard_cache *cache, const char *set, struct vfm_err *err)
{
	ix->cache = cache;
	ix->set = set;
	if (cache && ix->info.n_parts && !vfm_shard_cache_names_set(cache))
		return vfm_fail(err, VFM_EUSAGE,
			"--remote: '%s' joins several folders: the URL needs {set}, which is then the folder's name",
			ix->info.dir);
	for (uint32_t i = 0; cache && i < ix->info.n_parts; i++) {
		char *folder = real_folder(ix->info.parts[i].dir), *slash = strrchr(folder, '/');

		ix->info.parts[i].name = vfm_strdup(slash ? slash + 1 : folder);
		free(folder);
	}
	return 0;
}

/* A folder with shards, and its name in URLs. */
struct remote_set {
	const char *name;
	char *folder;
};

static int compare_remote_sets(const void *a, const void *b)
{
	const struct remote_set *x = a, *y = b;
	int names = strcmp(x->name, y->name);

	return names ? names : strcmp(x->folder, y->folder);
}

int vfm_index_check_remote(struct vfm_index *const *ix, size_t n_ix, struct vfm_err *err)
{
	struct remote_set *v = NULL;
	size_t n = 0, cap = 0;
	int rc = 0;

	if (n_ix == 0 || !ix[0]->cache || !vfm_shard_cache_names_set(ix[0]->cache))
		return 0;
	for (size_t i = 0; i < n_ix; i++) {
		const struct vfm_index *x = ix[i];

		vfm_grow(&v, &cap, n + x->info.n_parts + 1, sizeof(*v));
		if (!x->info.n_parts)
			v[n++] = (struct remote_set){x->set, real_folder(x->info.dir)};
		for (uint32_t k = 0; k < x->info.n_parts; k++)
			v[n++] = (struct remote_set){x->info.parts[k].name, real_folder(x->info.parts[k].dir)};
	}
	qsort(v, n, sizeof(*v), compare_remote_sets);
	for (size_t i = 1; i < n && rc == 0; i++)
		if (strcmp(v[i - 1].name, v[i].name) == 0 && strcmp(v[i - 1].folder, v[i].folder) != 0)
			rc = vfm_fail(err, VFM_EUSAGE,
				"--remote: '%s' and '%s' have the same name, '%s', and so the same URLs",
				v[i - 1].folder, v[i].folder, v[i].name);
	for (size_t i = 0; i < n; i++)
		free(v[i].folder);
	free(v);
	return rc;
}

/* The name in URLs of the folder that has a shard. */
static const char *remote_set_of(const struct vfm_index *ix, const struct vfm_index_shard *s)
{
	return s->folder ? ix->info.parts[s->folder - 1].name : ix->set;
}

static int open_shard(const struct vfm_index *ix, uint32_t shard, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct stat st;
	char *path;
	int fd, rc;

	TRY(vfm_index_shard(ix, shard, &s, err));
	path = vfm_strfmt("%s/%s", s.folder ? ix->info.parts[s.folder - 1].dir : ix->info.dir, s.name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && ix->cache) {
		free(path);
		return vfm_shard_cache_get(ix->cache, remote_set_of(ix, &s), s.name, s.bytes, err);
	}
	rc = fd;
	if (fd < 0 || fstat(fd, &st) < 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	else if ((uint64_t)st.st_size != s.bytes)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' has %" PRIu64 " bytes where the index says %" PRIu64, path,
			(uint64_t)st.st_size, s.bytes);
	if (rc < 0 && fd >= 0)
		close(fd);
	free(path);
	return rc;
}

int vfm_index_acquire(struct vfm_index *ix, uint32_t shard, struct vfm_index_fd **slot, struct vfm_err *err)
{
	struct vfm_index_fd *s = &ix->slots[shard % VFM_INDEX_FDS];
	int fd = -1;

	*slot = NULL;
	pthread_mutex_lock(&ix->lock);
	if (s->fd >= 0 && s->shard == shard) {
		s->users++;
		fd = s->fd;
		*slot = s;
	}
	pthread_mutex_unlock(&ix->lock);
	if (*slot)
		return fd;
	fd = open_shard(ix, shard, err);
	if (fd < 0)
		return fd;
	pthread_mutex_lock(&ix->lock);
	if (s->users == 0) {
		if (s->fd >= 0)
			close(s->fd);
		*s = (struct vfm_index_fd){shard, fd, 1};
		*slot = s;
	}
	pthread_mutex_unlock(&ix->lock);
	return fd;
}

void vfm_index_release(struct vfm_index *ix, struct vfm_index_fd *slot, int fd)
{
	if (!slot) {
		close(fd);
		return;
	}
	pthread_mutex_lock(&ix->lock);
	slot->users--;
	pthread_mutex_unlock(&ix->lock);
}

int vfm_index_renew(struct vfm_index *ix, uint32_t shard, int fd, struct vfm_err *err)
{
	struct vfm_index_fd *slot = &ix->slots[shard % VFM_INDEX_FDS];
	struct vfm_index_shard s;
	int rc;

	if (!ix->cache)
		return 0;
	TRY(vfm_index_shard(ix, shard, &s, err));
	rc = vfm_shard_cache_renew(ix->cache, remote_set_of(ix, &s), s.name, s.bytes, fd, err);
	pthread_mutex_lock(&ix->lock);
	if (rc == 1 && slot->fd == fd)
		slot->shard = UINT32_MAX; /* no shard: its users continue, and then it is closed */
	pthread_mutex_unlock(&ix->lock);
	return rc;
}

static void read_ahead_range(struct vfm_index *ix, uint32_t shard, uint64_t offset, uint64_t bytes)
{
	struct vfm_index_fd *slot;
	int fd = vfm_index_acquire(ix, shard, &slot, NULL);

	if (fd < 0)
		return;
	posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
	vfm_index_release(ix, slot, fd);
}

/* An array of a join in another shard than its record. */
static void read_ahead_array(struct vfm_index *ix, const struct vfm_index_text *t)
{
	if (t->shard)
		read_ahead_range(ix, t->shard - 1, t->offset, t->bytes);
}

void vfm_index_read_ahead(struct vfm_index *ix, const struct vfm_index_record *r)
{
	struct vfm_index_text t;

	if (ix->cache)
		return;
	read_ahead_range(ix, r->shard, r->sample_offset, r->sample_bytes);
	if (!ix->info.n_parts)
		return;
	for (uint32_t i = 0; i < r->n_texts; i++)
		if (vfm_index_text(ix, r, i, &t, NULL) == 0)
			read_ahead_array(ix, &t);
	for (enum vfm_extra e = 0; e < VFM_EXTRAS; e++)
		if (vfm_record_has_extra(r, e) && vfm_index_extra(ix, r, e, &t, NULL) == 0)
			read_ahead_array(ix, &t);
}
