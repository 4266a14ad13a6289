/* ops_tiles.c - the GEMMs and convolutions of AMX, bf16 and f32, on the model of the tile instructions. */
#define TILES_MODEL
#include "device/cpu/cpu_gemm_bf16x3.h"
#include "device/cpu/cpu_gemm_tile.h"

#include "device/cpu/cpu.h"
#include "device/cpu/cpu_impl.h"
#include "ops_test.h"

static const struct vfm_gemm_kern *below; /* of the CPU at hand */

/* The epilogue of the CPU at hand, whose tiles may be narrower. */
static void epilogue_in_parts(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n, int64_t mr, int64_t nr)
{
	float part[TROWS * TROWS];

	for (int64_t j = 0; j < nr; j += below->nr) {
		int64_t cols = nr - j < below->nr ? nr - j : below->nr;

		for (int64_t i = 0; i < mr; i++)
			memcpy(part + i * below->nr, tile + i * TROWS + j, (size_t)cols * sizeof(float));
		below->epilogue(e, part, m, n + j, mr, cols);
	}
}

struct vfm_dev *open_amx_model(struct vfm_err *err)
{
	struct vfm_gemm_kern bf16 = GEMM_TILES, f32 = GEMM_BF16X3;
	struct vfm_dev *d = vfm_cpu_open(err);
	struct vfm_cpu *c = (struct vfm_cpu *)d;

	if (!d)
		return NULL;
	below = &c->kern->gemm_bf16;
	bf16.epilogue = f32.epilogue = epilogue_in_parts;
	vfm_cpu_set_gemm(c, &f32, &bf16);
	return d;
}
