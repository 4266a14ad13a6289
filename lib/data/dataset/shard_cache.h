/* shard_cache.h - a bounded local copy of shards that are elsewhere.
 *
 * A shard that is not next to its index is fetched to a folder of the local disk (fetch.h).  The URL is BASE/SHARD,
 * where "{set}" in BASE becomes the name of the set in the plan or, in a join, of the shard's folder.  If the shards
 * exceed the bound, those that were opened longest ago are removed.
 *
 * Any number of processes may use one folder: one of them fetches a shard while the others wait.  A killed process
 * leaves nothing that stays.
 *
 * Replaces a copy of a wrong length, and one whose reader finds a fault (vfm_shard_cache_renew).  One process downloads
 * it again, once: a fault in the second download is the server's.  Running processes remember it; the next run that
 * opens the cache forgets it.  Runs whose indexes give a shard different lengths remember their own faults.
 */
#ifndef VFM_DATA_DATASET_SHARD_CACHE_H
#define VFM_DATA_DATASET_SHARD_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/opt.h"

struct vfm_shard_cache;

struct vfm_shard_cache_opts {
	const char *url;     /* BASE; NULL: no cache */
	const char *dir;     /* the folder; created if missing */
	double gib;          /* of all shards in it */
	const char *command; /* NULL: http and https alone */
};

/* Rows of a struct vfm_opt table; `o` is a struct vfm_shard_cache_opts *. */
#define VFM_SHARD_CACHE_OPTS(o)                                                                                        \
	{VFM_OPT_STR, 0, "remote", "URL", "fetch shards not next to their index from URL/SHARD", &(o)->url},           \
		{VFM_OPT_STR, 0, "cache", "DIR", "keep fetched shards in DIR", &(o)->dir},                             \
		{VFM_OPT_NUM, 0, "cache-gib", "N", "at most N GiB of them", &(o)->gib},                                \
	{                                                                                                              \
		VFM_OPT_STR, 0, "fetch", "CMD", "run CMD URL FILE to fetch a shard, instead of HTTP", &(o)->command    \
	}
/* Sets *c to NULL without a URL.  VFM_EUSAGE: no folder or bound, or a command that cannot be split into words.  Call
 * it with few threads (fetch.h).  The options are copied. */
int vfm_shard_cache_open(struct vfm_shard_cache **c, const struct vfm_shard_cache_opts *o, struct vfm_err *err);
void vfm_shard_cache_close(struct vfm_shard_cache *c); /* NULL is fine */

/* Whether URLs depend on the name of the set. */
bool vfm_shard_cache_names_set(const struct vfm_shard_cache *c);

/* Returns a descriptor of a shard of `bytes`, and fetches it if needed.  Thread-safe.  VFM_EENV: it cannot be fetched,
 * is larger than the cache, or the folder cannot be used; VFM_EINPUT: it has another size, twice. */
int vfm_shard_cache_get(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, struct vfm_err *err);
/* Call if the file of vfm_shard_cache_get's fd is truncated or contradicts the index.  Returns 1 if the shard was
 * downloaded again, here or by another process; the caller opens and reads it anew.  Returns 0 if that has been done
 * before, or fd is not of this cache: the fault stays.  Thread-safe.  Errors as of vfm_shard_cache_get. */
int vfm_shard_cache_renew(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, int fd, struct vfm_err *err);

#endif
