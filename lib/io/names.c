/* names.c - a hash table with open addressing over the FNV-1a hash of the names. */
#include "io/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/hash.h"

/* Returns the place of a name in the table: its own, or the free one that it would take. */
static size_t find_place(const struct vfm_names *v, const char *name)
{
	uint64_t h = vfm_fnv64(name, strlen(name));
	size_t at;

	h ^= h >> 29;
	for (at = h & (v->size - 1); v->table[at]; at = (at + 1) & (v->size - 1))
		if (!strcmp(vfm_names_at(v, v->table[at] - 1), name))
			break;
	return at;
}

/* Keeps the table at most half full. */
static void grow_table(struct vfm_names *v)
{
	if ((size_t)v->n * 2 + 2 <= v->size)
		return;
	v->size = v->size ? 2 * v->size : 1024;
	free(v->table);
	v->table = vfm_calloc(v->size, sizeof(*v->table));
	for (int64_t i = 0; i < v->n; i++)
		v->table[find_place(v, vfm_names_at(v, i))] = (int32_t)(i + 1);
}

int64_t vfm_names_add(struct vfm_names *v, const char *name)
{
	size_t len = strlen(name) + 1, place;

	grow_table(v);
	place = find_place(v, name);
	if (v->table[place] || v->n == INT32_MAX)
		return -1;
	vfm_grow(&v->text, &v->cap, v->len + len, 1);
	vfm_grow(&v->at, &v->cap_at, (size_t)v->n + 1, sizeof(*v->at));
	memcpy(v->text + v->len, name, len);
	v->at[v->n] = v->len;
	v->len += len;
	v->table[place] = (int32_t)++v->n;
	return v->n - 1;
}

int64_t vfm_names_find(const struct vfm_names *v, const char *name)
{
	return v->size ? (int64_t)v->table[find_place(v, name)] - 1 : -1;
}

void vfm_names_release(struct vfm_names *v)
{
	free(v->text);
	free(v->at);
	free(v->table);
	*v = (struct vfm_names){0};
}
