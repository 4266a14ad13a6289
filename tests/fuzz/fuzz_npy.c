/* Any bytes as an npy file: what is accepted must describe exactly these bytes, its elements are finite or not, and
 * writing its header again must read back the same. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "io/npy.h"
#include "spec/model/dtype.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Element by element, as vfm_npy_check_finite must decide. */
static bool is_finite(const struct vfm_npy *n, const uint8_t *data)
{
	for (uint64_t i = 0; i < vfm_npy_count(n); i++) {
		uint16_t half;
		double d = 0;
		float f = 0;

		if (n->type == VFM_NPY_F16) {
			memcpy(&half, data + 2 * i, 2);
			f = vfm_f16_to_f32(half);
		} else if (n->type == VFM_NPY_BF16) {
			memcpy(&half, data + 2 * i, 2);
			f = vfm_bf16_to_f32(half);
		} else if (n->type == VFM_NPY_F32) {
			memcpy(&f, data + 4 * i, 4);
		} else if (n->type == VFM_NPY_F64) {
			memcpy(&d, data + 8 * i, 8);
		}
		if (!isfinite(f) || !isfinite(d))
			return false;
	}
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char header[VFM_NPY_HEADER_MAX];
	struct vfm_err err;
	struct vfm_npy n, again;
	size_t len;

	/* As a complete file, and as the start of a longer one. */
	for (uint64_t total = size, i = 0; i < 2; i++, total = size + (size ? data[0] * 7919u : 0)) {
		if (vfm_npy_parse(&n, data, size, total, "fuzz.npy", &err) < 0)
			continue;
		if (n.header_bytes + n.data_bytes != total || n.header_bytes > size ||
			n.data_bytes != vfm_npy_count(&n) * vfm_npy_type_size(n.type))
			abort();
		if (total == size &&
			(vfm_npy_check_finite(&n, data + n.header_bytes, "fuzz.npy", &err) == 0) !=
				is_finite(&n, data + n.header_bytes))
			abort();
		len = vfm_npy_header(header, n.type, n.ndim, n.shape);
		if (vfm_npy_parse(&again, header, len, len + n.data_bytes, "again", &err) < 0 || again.type != n.type ||
			again.ndim != n.ndim || memcmp(again.shape, n.shape, sizeof(n.shape)) != 0)
			abort();
	}
	return 0;
}
