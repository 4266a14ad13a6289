/* plan_bin.c - the reader of the binary encoding, with O(1) access to a step. */
#include <string.h>

#include "data/plan/plan_impl.h"

#include "base/le.h"

int vfm_plan_bin_open(struct vfm_plan *m, struct vfm_err *err)
{
	const uint8_t *d = m->map.data;
	uint64_t size = m->map.size, samples_off, packs_off;
	uint32_t len;

	if (size < BIN_FIXED)
		return vfm_fail(err, VFM_EUSAGE, "truncated in the header");
	if (vfm_crc32c(0, d, BIN_FIXED - 4) != vfm_read_le32(d + BIN_FIXED - 4))
		return vfm_fail(err, VFM_EUSAGE, "damaged: wrong checksum of the first %d bytes", BIN_FIXED);
	len = vfm_read_le32(d + 8);
	m->n_packs = vfm_read_le(d + 16, 8);
	m->n_samples = vfm_read_le(d + 24, 8);
	samples_off = vfm_read_le(d + 32, 8);
	packs_off = vfm_read_le(d + 40, 8);
	if (vfm_read_le(d + 48, 8) != size)
		return vfm_fail(err, VFM_EUSAGE, "truncated: %llu bytes, expected %llu", (unsigned long long)size,
			(unsigned long long)vfm_read_le(d + 48, 8));
	if (len > PLAN_MAX_HEADER || len > size - BIN_FIXED)
		return vfm_fail(err, VFM_EUSAGE, "damaged: a header of %u bytes", len);
	if (vfm_crc32c(0, d + BIN_FIXED, len) != vfm_read_le32(d + 12))
		return vfm_fail(err, VFM_EUSAGE, "damaged: wrong checksum of the header");
	/* Divisions, so that hostile counts cannot overflow. */
	if (samples_off > size || m->n_samples > (size - samples_off) / BIN_SAMPLE || packs_off > size ||
		m->n_packs > (size - packs_off) / BIN_PACK)
		return vfm_fail(err, VFM_EUSAGE, "damaged: tables beyond the end of the file");
	TRY(vfm_plan_parse_header(m, (const char *)d + BIN_FIXED, len, err));
	if (m->n_packs != (uint64_t)m->h.steps * (uint64_t)m->h.batch)
		return vfm_fail(err, VFM_EUSAGE, "damaged: %llu packs for %lld steps of %d",
			(unsigned long long)m->n_packs, (long long)m->h.steps, m->h.batch);
	m->samples = d + samples_off;
	m->packs = d + packs_off;
	return 0;
}

static void decode_sample(const uint8_t *r, struct vfm_plan_sample *s)
{
	uint32_t head = vfm_read_le32(r), shard = vfm_read_le32(r + 4), tokens = vfm_read_le32(r + 12);

	s->set = head > INT32_MAX ? -1 : (int32_t)head; /* the upper half must be 0: a larger number is no set */
	s->shard = shard > INT32_MAX ? -1 : (int32_t)shard;
	s->index = vfm_read_le32(r + 8);
	s->tokens = tokens > INT32_MAX ? -1 : (int32_t)tokens;
}

/* is_covered: the part belongs to the pack before. */
static int read_pack(const struct vfm_plan *m, uint64_t k, bool is_covered, struct vfm_plan_step *out, size_t *used,
	struct vfm_plan_pack *p, struct vfm_err *err)
{
	const uint8_t *r = m->packs + k * BIN_PACK, *s;
	uint64_t first = vfm_read_le(r, 8), n = vfm_read_le32(r + 8), bits = vfm_read_le(r + 24, 8);
	uint8_t head[BIN_PACK];

	if (first > m->n_samples || n > m->n_samples - first || n > VFM_PLAN_MAX_CONTEXT)
		return vfm_fail(err, VFM_EUSAGE, "damaged: %llu samples from %llu of %llu", (unsigned long long)n,
			(unsigned long long)first, (unsigned long long)m->n_samples);
	s = m->samples + first * BIN_SAMPLE;
	memcpy(head, r, BIN_PACK);
	memset(head + 12, 0, 4);
	if (vfm_crc32c(vfm_crc32c(0, head, BIN_PACK), s, n * BIN_SAMPLE) != vfm_read_le32(r + 12))
		return vfm_fail(err, VFM_EUSAGE, "damaged: wrong checksum");
	vfm_grow(&out->samples, &out->cap_samples, *used + n, sizeof(*out->samples));
	for (uint64_t i = 0; i < n; i++)
		decode_sample(s + i * BIN_SAMPLE, &out->samples[*used + i]);
	p->n_samples = (int32_t)n;
	p->tokens = vfm_read_le32(r + 16);
	memcpy(&p->cost, &bits, 8);
	if (is_covered)
		return n || p->tokens || vfm_read_le32(r + 20) || bits
			? vfm_fail(err, VFM_EUSAGE, "a part of the pack before is not empty")
			: 0;
	TRY(vfm_plan_check_cp(m, p->pack, m->h.cp ? vfm_read_le32(r + 20) : vfm_read_le32(r + 20) + 1, err));
	p->cp = m->h.cp ? (int32_t)vfm_read_le32(r + 20) : 1;
	TRY(vfm_plan_check_pack(m, p, out->samples + *used, err));
	*used += n;
	return 0;
}

int vfm_plan_bin_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *out, struct vfm_err *err)
{
	size_t used = 0;

	vfm_grow(&out->packs, &out->cap_packs, (size_t)m->h.batch, sizeof(*out->packs));
	for (int32_t i = 0, end = 0; i < m->h.batch; i++) {
		uint64_t k = (uint64_t)step * (uint64_t)m->h.batch + (uint64_t)i;
		struct vfm_plan_pack *p = &out->packs[i];

		*p = (struct vfm_plan_pack){.step = step, .pack = i};
		if (read_pack(m, k, i < end, out, &used, p, err) < 0)
			return vfm_err_context(err, "step %lld, pack %d", (long long)step, i);
		end = i < end ? end : i + p->cp;
	}
	return 0;
}
