/* Version 1 of index.vfmi, in which a record holds its text. */
#include "data/dataset/index_impl.h"

void vfm_index_text_v1(struct vfm_index_text *t, const struct vfm_index_record *r)
{
	*t = (struct vfm_index_text){.offset = r->first_text,
		.bytes = r->n_texts,
		.data_crc = r->reserved0,
		.header = r->reserved1[0],
		.rows = r->reserved1[1],
		.dtype = r->reserved2};
}

void vfm_index_upgrade_v1(struct vfm_index_record *r, uint64_t n)
{
	r->n_texts = r->n_texts != 0;
	r->first_text = r->n_texts ? n : 0;
	r->reserved0 = r->reserved1[0] = r->reserved1[1] = r->reserved2 = 0;
}
