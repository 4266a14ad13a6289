/* Any bytes as the file of GEMM algorithms.  Entries that are read are well-formed, the first of each key.  An added
 * entry is found by its writer, by a process that has the file open, and by one that opens it later. */
#include <search.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/gemm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
	if (!ok)
		abort();
}

static void check_entry(const void *node, VISIT when, void *cache)
{
	const struct vfm_lt_entry *e = *(const struct vfm_lt_entry *const *)node;

	if (when == preorder || when == leaf)
		must(memchr(e->key, 0, sizeof(e->key)) && e->ws >= 0 && e->us >= 0 && e->path < 2048 &&
			vfm_lt_cache_find(cache, e->key) == e);
}

static void check(struct vfm_lt_cache *c)
{
	twalk_r(c->tree, check_entry, c);
}

static void find_equal(const void *node, VISIT when, void *other)
{
	const struct vfm_lt_entry *e = *(const struct vfm_lt_entry *const *)node, *f = vfm_lt_cache_find(other, e->key);

	if (when == preorder || when == leaf)
		must(f && memcmp(f->algo, e->algo, sizeof(e->algo)) == 0 && f->ws == e->ws && f->path == e->path);
}

/* Everything in a is in b, equal. */
static void within(const struct vfm_lt_cache *a, struct vfm_lt_cache *b)
{
	twalk_r(a->tree, find_equal, b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char path[64];
	struct vfm_lt_entry mine = {.key = "fuzz", .path = 7, .ws = 1, .us = 0.5},
			    other = {.key = "another", .ws = 2, .us = 3};
	const struct vfm_lt_entry *e;
	struct vfm_lt_cache a, b, again;
	FILE *f;

	if (!path[0])
		snprintf(path, sizeof(path), "/tmp/fuzz-gemm-%ld", (long)getpid());
	memset(mine.algo, 0x5a, sizeof(mine.algo));
	f = fopen(path, "w");
	must(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
	vfm_lt_cache_open(&a, path);
	vfm_lt_cache_open(&b, path);
	check(&a);
	e = vfm_lt_cache_add(&a, &mine, false);
	must(e && strcmp(e->key, "fuzz") == 0);
	must(vfm_lt_cache_add(&b, &other, false) != NULL);
	must(vfm_lt_cache_add(&b, &mine, false) != NULL);
	must(memcmp(vfm_lt_cache_find(&b, "fuzz")->algo, e->algo, sizeof(e->algo)) == 0);
	check(&a);
	check(&b);
	vfm_lt_cache_open(&again, path);
	check(&again);
	within(&a, &again);
	within(&b, &again);
	within(&again, &b);
	vfm_lt_cache_close(&a);
	vfm_lt_cache_close(&b);
	vfm_lt_cache_close(&again);
	unlink(path);
	return 0;
}
