/* cpu_held.c - packed copies of held operands of GEMM (tensor.h): weights are packed once after each update. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu_impl.h"

enum { HELD_BUCKETS = 256 };

struct held_copy {
	struct held_copy *next;
	struct vfm_held_key key;
	int64_t version; /* of the contents of packed; 0: none */
	float *packed;
	size_t bytes;
};

struct vfm_cpu_held {
	struct held_copy *bucket[HELD_BUCKETS];
};

static bool same_key(const struct vfm_held_key *a, const struct vfm_held_key *b)
{
	return a->b.p == b->b.p && a->b.ld == b->b.ld && a->b.bf == b->b.bf && a->b.kmajor == b->b.kmajor &&
		a->n == b->n && a->k == b->k && a->kc == b->kc;
}

static struct held_copy *find_held(struct vfm_cpu *c, const struct vfm_held_key *key)
{
	struct held_copy **at, *h;

	if (!c->held)
		c->held = vfm_calloc(1, sizeof(*c->held));
	at = &c->held->bucket[((uintptr_t)key->b.p >> 6) * 2654435761u % HELD_BUCKETS];
	for (h = *at; h; h = h->next)
		if (same_key(&h->key, key))
			return h;
	h = vfm_calloc(1, sizeof(*h));
	h->key = *key;
	h->next = *at;
	*at = h;
	return h;
}

float *vfm_cpu_held(struct vfm_cpu *c, const struct vfm_held_key *key, int64_t version, size_t bytes, bool *valid)
{
	struct held_copy *h = find_held(c, key);
	struct vfm_err err;

	if (!h->packed) {
		h->packed = vfm_big_alloc(bytes, "packed weights", &err);
		if (!h->packed)
			return NULL;
		h->bytes = bytes;
		vfm_dev_count(&c->dev, (int64_t)bytes);
	}
	*valid = h->version == version;
	h->version = version;
	return h->packed;
}

void vfm_cpu_drop_held(struct vfm_cpu *c)
{
	for (int i = 0; c->held && i < HELD_BUCKETS; i++)
		while (c->held->bucket[i]) {
			struct held_copy *h = c->held->bucket[i];

			c->held->bucket[i] = h->next;
			if (h->packed)
				vfm_dev_count(&c->dev, -(int64_t)h->bytes);
			vfm_big_free(h->packed, h->bytes);
			free(h);
		}
	free(c->held);
	c->held = NULL;
}
