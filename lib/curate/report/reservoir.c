/* reservoir.c - keeps the first records, then replaces a random one. */
#include "curate/report/reservoir.h"

#include <stdlib.h>

#include "base/mem.h"

void reservoir_init(struct reservoir *s, int64_t most, uint64_t id)
{
	*s = (struct reservoir){.most = (int)most, .rng = vfm_rng_stream(0, 0, id, VFM_RNG_SAMPLE)};
	s->rec = vfm_calloc((size_t)most + 1, sizeof(s->rec[0]));
}

void reservoir_release(struct reservoir *s)
{
	for (int i = 0; i < s->n; i++)
		json_decref(s->rec[i]);
	free(s->rec);
}

void reservoir_offer(struct reservoir *s, const json_t *rec)
{
	uint64_t at = (uint64_t)s->n;

	s->offered++;
	if (s->n == s->most)
		at = s->most ? vfm_rng_below(&s->rng, (uint64_t)s->offered, (uint64_t)s->offered) : 0;
	else
		s->n++;
	if (at >= (uint64_t)s->most)
		return;
	json_decref(s->rec[at]);
	s->rec[at] = json_incref((json_t *)(uintptr_t)rec);
}
