/* embed.cu - learned embeddings of a token position in time, height and width.  A position outside its table adds
 * nothing and is reported (fault.h). */
#include "device/cuda/kern/rows.h"

struct embed_args {
	const int32_t *pos; /* [T,3] */
	int64_t rows, d, size[3];
	int share; /* threads that share a row */
	uint64_t *fault;
};

template <int N, class T, class Y>
__global__ __launch_bounds__(256, 4) static void embed3(
	const embed_args a, const T *tt, const T *th, const T *tw, Y *out)
{
	int64_t here = 256 / a.share;

	for (int64_t t = (int64_t)blockIdx.x * here + threadIdx.x / a.share; t < a.rows;
		t += (int64_t)gridDim.x * here) {
		const int32_t *pos = a.pos + 3 * t;
		const T *row[3];

#pragma unroll
		for (int k = 0; k < 3; k++) {
			bool is = row_of(pos[k], a.size[k], 0, a.fault);

			row[k] = is ? (k == 0 ? tt : k == 1 ? th : tw) + pos[k] * a.d : NULL;
		}
#pragma unroll 2
		for (int64_t c = (int64_t)(threadIdx.x % a.share) * N; c < a.d; c += (int64_t)a.share * N) {
			vec<N> v[3] = {};

#pragma unroll
			for (int k = 0; k < 3; k++)
				if (row[k])
					v[k] = ld_vec<N>(row[k] + c);
#pragma unroll
			for (int j = 0; j < N; j++)
				v[0].v[j] = v[0].v[j] + v[1].v[j] + v[2].v[j];
			st_vec<N>(out + t * a.d + c, v[0]);
		}
	}
}

template <int N> static void launch_embed3(struct vfm_stream *s, const struct vfm_embed3 *o, embed_args a)
{
	int64_t blocks, most = (int64_t)vfm_cuda_sms(s) * 16;

	a.share = 1;
	while (a.share < 256 && a.share < a.d / N)
		a.share *= 2;
	blocks = ceil_div(a.rows, 256 / a.share);
	VFM_ACT_TYPE(o->table_t.dtype, T,
		VFM_ACT_TYPE(o->out.dtype, Y,
			VFM_LAUNCH(s, (embed3<N, T, Y>), blocks < most ? blocks : most, 256, 0, a,
				(const T *)o->table_t.data, (const T *)o->table_h.data, (const T *)o->table_w.data,
				(Y *)o->out.data)));
}

extern "C" int vfm_cuda_embed3(struct vfm_stream *s, const struct vfm_embed3 *o, struct vfm_err *err)
{
	embed_args a = {(const int32_t *)o->pos.data, o->out.shape[0], o->out.shape[1],
		{o->table_t.shape[0], o->table_h.shape[0], o->table_w.shape[0]}, 0, vfm_cuda_fault(s, VFM_OP_embed3)};

	if (a.rows * a.d == 0)
		return 0;
	if (vec_ok(&o->table_t, 8) && vec_ok(&o->table_h, 8) && vec_ok(&o->table_w, 8) && vec_ok(&o->out, 8))
		launch_embed3<8>(s, o, a);
	else
		launch_embed3<1>(s, o, a);
	return vfm_cuda_launched(s, "embed3", err);
}

extern "C" int vfm_cuda_embed3_bwd(struct vfm_stream *s, const struct vfm_embed3_bwd *o, struct vfm_err *err)
{
	const struct vfm_tensor *table[] = {&o->dtable_t, &o->dtable_h, &o->dtable_w};
	int64_t n = o->dy.shape[0], d = o->dy.shape[1];
	size_t bytes = 0;
	void *ws;

	for (int i = 0; i < 3; i++)
		if (vfm_has(table[i])) {
			size_t need = vfm_row_sums_ws(n, table[i]->shape[0], d);

			TRY(vfm_row_sums_fit("embed3_bwd", n, table[i]->shape[0], err));
			bytes = need > bytes ? need : bytes;
		}
	ws = vfm_cuda_ws(s, bytes, err);
	if (!ws)
		return VFM_EENV;
	for (int i = 0; n && i < 3; i++)
		if (vfm_has(table[i])) {
			struct row_sums a = {o->dy.data, table[i]->data, d, d, o->dy.dtype == VFM_BF16, false, true,
				(const int32_t *)o->pos.data + i, 3, NULL, n, table[i]->shape[0], d, 0,
				vfm_cuda_fault(s, VFM_OP_embed3_bwd)};

			vfm_row_sums(s, &a, ws);
		}
	return vfm_cuda_launched(s, "embed3_bwd", err);
}
