/* index_shards.c - opens the shards of an index: beside it, in the folders of a join, or in a cache. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/index_impl.h"
#include "data/shard_cache.h"

/* The name of a folder, which may be written as DIR/.. */
static char *folder_name(const char *dir)
{
	char *real = realpath(dir, NULL), *slash, *name;

	if (!real)
		real = vfm_strdup(dir);
	for (size_t n = strlen(real); n > 1 && real[n - 1] == '/'; n--)
		real[n - 1] = 0;
	slash = strrchr(real, '/');
	name = vfm_strdup(slash ? slash + 1 : real);
	free(real);
	return name;
}

int vfm_index_set_cache(struct vfm_index *ix, struct vfm_shard_cache *cache, const char *set, struct vfm_err *err)
{
	ix->cache = cache;
	ix->set = set;
	if (cache && ix->n_parts && !vfm_shard_cache_names_set(cache))
		return vfm_fail(err, VFM_EUSAGE,
			"--remote: '%s' joins several folders: the URL needs {set}, which is then the folder's name",
			ix->dir);
	for (uint32_t i = 0; cache && i < ix->n_parts; i++) {
		ix->parts[i].name = folder_name(ix->parts[i].dir);
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(ix->parts[i].name, ix->parts[k].name) == 0)
				return vfm_fail(err, VFM_EUSAGE, "--remote: '%s' and '%s' have the same name",
					ix->parts[k].dir, ix->parts[i].dir);
	}
	return 0;
}

static int open_shard(const struct vfm_index *ix, uint32_t shard, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct stat st;
	char *path;
	int fd, rc;

	TRY(vfm_index_shard(ix, shard, &s, err));
	path = vfm_strfmt("%s/%s", s.folder ? ix->parts[s.folder - 1].dir : ix->dir, s.name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && ix->cache) {
		free(path);
		return vfm_shard_cache_get(
			ix->cache, s.folder ? ix->parts[s.folder - 1].name : ix->set, s.name, s.bytes, err);
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

static void read_ahead_range(struct vfm_index *ix, uint32_t shard, uint64_t offset, uint64_t bytes)
{
	struct vfm_index_fd *slot;
	int fd = vfm_index_acquire(ix, shard, &slot, NULL);

	if (fd < 0)
		return;
	posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
	vfm_index_release(ix, slot, fd);
}

void vfm_index_read_ahead(struct vfm_index *ix, const struct vfm_record *r)
{
	struct vfm_index_text t;

	if (ix->cache)
		return;
	read_ahead_range(ix, r->shard, r->sample_offset, r->sample_bytes);
	for (uint32_t i = 0; ix->n_parts && i < r->n_texts; i++)
		if (vfm_index_text(ix, r, i, &t, NULL) == 0 && t.shard)
			read_ahead_range(ix, t.shard - 1, t.offset, t.bytes);
	for (int e = 0; ix->n_parts && e < VFM_EXTRAS; e++)
		if (vfm_record_has_extra(r, (enum vfm_extra)e) && vfm_index_extra(ix, r, e, &t, NULL) == 0 && t.shard)
			read_ahead_range(ix, t.shard - 1, t.offset, t.bytes);
}
