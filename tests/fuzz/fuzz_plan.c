/* Plans of both encodings: any bytes; what is read conforms to plan.h.  In inputs that
 * begin like the binary encoding the checksums are corrected, so that the fuzzer gets past them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/plan/plan.h"
#include "io/file.h"
#include "io/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t at32(const uint8_t *p)
{
	uint32_t x;

	memcpy(&x, p, 4);
	return x;
}

static void put32(uint8_t *p, uint32_t x)
{
	memcpy(p, &x, 4);
}

static void mend(uint8_t *d, size_t size)
{
	uint64_t packs_off, n;

	if (size < 64 || memcmp(d, "VFMMANI1", 8))
		return;
	if (at32(d + 8) <= size - 64)
		put32(d + 12, vfm_crc32c(0, d + 64, at32(d + 8)));
	n = size;
	memcpy(d + 48, &n, 8);
	put32(d + 60, vfm_crc32c(0, d, 60));
	memcpy(&packs_off, d + 40, 8);
	for (uint64_t at = packs_off; at < size && size - at >= 32; at += 32) { /* the checksum of each pack */
		uint64_t first, samples_off;
		uint32_t count = at32(d + at + 8);

		memcpy(&first, d + at, 8);
		memcpy(&samples_off, d + 32, 8);
		if (samples_off > size || first > (size - samples_off) / 16 ||
			count > (size - samples_off) / 16 - first)
			continue;
		put32(d + at + 12, 0);
		put32(d + at + 12, vfm_crc32c(vfm_crc32c(0, d + at, 32), d + samples_off + first * 16, count * 16ull));
	}
}

static void check(const struct vfm_plan_header *h, const struct vfm_plan_step *s, int64_t step)
{
	int64_t tokens = 0;

	if (s->step != step || s->n_packs != h->batch)
		abort();
	for (int32_t i = 0; i < s->n_packs; i++) {
		const struct vfm_plan_pack *p = &s->packs[i];
		int64_t sum = 0;

		if (p->step != step || p->pack != i || p->cp > (h->cp ? h->cp : 1))
			abort();
		if (p->cp == 0 ? p->n_samples || p->tokens || vfm_plan_pack_of(s, i)->cp < 2
			       : p->n_samples < 1 || p->tokens > (int64_t)p->cp * h->context || i % p->cp)
			abort();
		for (int32_t k = 0; k < p->n_samples; k++) {
			if (p->samples[k].set < 0 || p->samples[k].set >= h->n_sets || p->samples[k].tokens < 1 ||
				p->samples[k].shard < 0 || p->samples[k].index < 0 ||
				p->samples[k].index >= h->sets[p->samples[k].set].records)
				abort();
			sum += p->samples[k].tokens;
		}
		if (sum != p->tokens)
			abort();
		tokens += sum;
	}
	if (tokens != s->tokens)
		abort();
}

/* A plan that can be read whole has a hash, and only then. */
static void check_hash(const struct vfm_plan *m)
{
	const struct vfm_plan_header *h = vfm_plan_header(m);
	struct vfm_plan_step s = {0};
	struct vfm_err err = {0};
	char hex[VFM_SHA256_HEX];
	int64_t good = 0;
	int rc = vfm_plan_sha256(m, hex, NULL, NULL, &err);

	while (good < h->steps && vfm_plan_step(m, good, &s, NULL) == 0)
		good++;
	if ((rc == 0) != (good == h->steps) || (rc == 0 && strlen(hex) != 64))
		abort();
	vfm_plan_step_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("plan", 0);
	char path[64];
	struct vfm_plan_step s = {0};
	struct vfm_err err = {0};
	struct vfm_plan *m;
	uint8_t *copy = vfm_malloc(size + 1);

	memcpy(copy, data, size);
	mend(copy, size);
	if (fd < 0 || write(fd, copy, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	m = vfm_plan_open(path, &err);
	if (m) {
		const struct vfm_plan_header *h = vfm_plan_header(m);

		for (int64_t i = 0; i < h->steps && i < 40; i++)
			if (vfm_plan_step(m, i, &s, &err) == 0)
				check(h, &s, i);
		if (vfm_plan_step(m, h->steps - 1, &s, &err) == 0)
			check(h, &s, h->steps - 1);
		vfm_plan_step_release(&s);
		check_hash(m);
		vfm_plan_close(m);
	} else if (err.code >= 0 || !err.msg[0]) {
		abort();
	}
	close(fd);
	free(copy);
	return 0;
}
