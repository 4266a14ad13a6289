/* pack.c - places the arrays of a pack in one block of memory. */
#include "spec/layout/pack.h"

#include "base/mem.h"
#include "base/suballoc.h"

static void place_arrays(struct vfm_pack *p, struct vfm_suballoc *a)
{
	p->id = vfm_suballoc(a, p->n, sizeof(*p->id));
	p->grid = vfm_suballoc(a, p->n, sizeof(*p->grid));
	p->cu_seqlens = vfm_suballoc(a, p->n + 1, sizeof(*p->cu_seqlens));
	p->cu_text = vfm_suballoc(a, p->n + 1, sizeof(*p->cu_text));
	p->cu_text2 = p->text2_dim ? vfm_suballoc(a, p->n + 1, sizeof(*p->cu_text2)) : NULL;
	p->x0 = p->patch_dim ? vfm_suballoc(a, p->tokens * p->patch_dim, vfm_dtype_size(p->x0_dtype)) : NULL;
	p->cond = p->cond_dim ? vfm_suballoc(a, p->tokens * p->cond_dim, vfm_dtype_size(p->x0_dtype)) : NULL;
	p->image =
		p->image_dim ? vfm_suballoc(a, (int64_t)p->n * p->image_len * p->image_dim, sizeof(*p->image)) : NULL;
	p->text = vfm_suballoc(a, p->text_tokens * p->text_dim, sizeof(*p->text));
	p->text2 = p->text2_dim ? vfm_suballoc(a, p->text2_tokens * p->text2_dim, sizeof(*p->text2)) : NULL;
	p->seg = vfm_suballoc(a, p->tokens, sizeof(*p->seg));
	p->idx = vfm_suballoc(a, p->tokens, sizeof(*p->idx));
	p->pos = vfm_suballoc(a, p->tokens, sizeof(*p->pos));
}

size_t vfm_pack_bytes(const struct vfm_pack *p)
{
	struct vfm_pack sizes = *p;
	struct vfm_suballoc count = {0};

	place_arrays(&sizes, &count);
	return count.used;
}

void vfm_pack_place(struct vfm_pack *p, void *mem)
{
	place_arrays(p, &(struct vfm_suballoc){.base = mem});
}

int vfm_pack_alloc(struct vfm_pack *p, struct vfm_err *err)
{
	size_t bytes = vfm_pack_bytes(p);

	if (p->bytes < bytes) {
		vfm_big_free(p->mem, p->bytes);
		p->bytes = 0;
		p->mem = vfm_big_alloc(bytes, "a pack of samples", err);
		if (!p->mem)
			return VFM_EENV;
		p->bytes = bytes;
	}
	vfm_pack_place(p, p->mem);
	p->cu_seqlens[0] = 0;
	p->cu_text[0] = 0;
	if (p->cu_text2)
		p->cu_text2[0] = 0;
	return 0;
}

void vfm_pack_set(struct vfm_pack *p, int i, uint64_t id, const int32_t grid[3], int32_t text_rows)
{
	int64_t at = p->cu_seqlens[i];
	int32_t k = 0;

	p->id[i] = id;
	for (int a = 0; a < 3; a++)
		p->grid[i][a] = grid[a];
	for (int32_t t = 0; t < grid[0]; t++)
		for (int32_t h = 0; h < grid[1]; h++)
			for (int32_t w = 0; w < grid[2]; w++, at++) {
				p->seg[at] = i;
				p->idx[at] = k++;
				p->pos[at][0] = (int16_t)t;
				p->pos[at][1] = (int16_t)h;
				p->pos[at][2] = (int16_t)w;
			}
	p->cu_seqlens[i + 1] = (int32_t)at;
	p->cu_text[i + 1] = p->cu_text[i] + text_rows;
	if (p->cu_text2)
		p->cu_text2[i + 1] = p->cu_text2[i];
}

void vfm_pack_set_text2(struct vfm_pack *p, int i, int32_t rows)
{
	p->cu_text2[i + 1] = p->cu_text2[i] + rows;
}

void vfm_pack_release(struct vfm_pack *p)
{
	vfm_big_free(p->mem, p->bytes);
	*p = (struct vfm_pack){0};
}
