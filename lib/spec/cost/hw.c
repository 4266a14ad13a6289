#include "spec/cost/hw.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* From NVIDIA's data sheets, whose figures with sparsity are halved: A100 (2021), H100 (2023), H100 NVL, H200 and H200
 * NVL (2024), "Blackwell Architecture Technical Brief" and DGX B200, GB200, B300, GB300 (2024, 2025), L4, L40S, A10,
 * "Ada" and "Blackwell GPU Architecture" (RTX: tensor cores with fp32 accumulation).  H20, H800 and A800: the boards'
 * published specifications. */
static const struct vfm_hw list[] = {
	{"A100 40GB", 312, 0, 19.5, 1555, 40},
	{"A100 80GB PCIe", 312, 0, 19.5, 1935, 80},
	{"A100", 312, 0, 19.5, 2039, 80},
	{"A800", 312, 0, 19.5, 2039, 80},
	{"H100 PCIe", 756, 1513, 51, 2039, 80},
	{"H100 NVL", 835.5, 1671, 60, 3900, 94},
	{"H100", 989.4, 1978.9, 66.9, 3350, 80},
	{"H800 PCIe", 756, 1513, 51, 2039, 80},
	{"H800", 989.4, 1978.9, 66.9, 3350, 80},
	{"H200 NVL", 835.5, 1671, 60, 4800, 141},
	{"H200", 989.4, 1978.9, 66.9, 4800, 141},
	{"GH200 480GB", 989.4, 1978.9, 66.9, 4000, 96},
	{"GH200", 989.4, 1978.9, 66.9, 4900, 144},
	{"H20", 148, 296, 44, 4000, 96},
	{"GB300", 2500, 5000, 80, 8000, 279},
	{"B300", 2250, 4500, 75, 8000, 270},
	{"GB200", 2500, 5000, 80, 8000, 186},
	{"B200", 2250, 4500, 75, 8000, 180},
	{"L40S", 362, 733, 91.6, 864, 48},
	{"L4", 121, 242, 30.3, 300, 24},
	{"A10", 125, 0, 31.2, 600, 24},
	{"RTX 4090", 165.2, 330.3, 82.6, 1008, 24},
	{"RTX 5090", 209.5, 419, 104.8, 1792, 32},
};

/* Whether `word` [len] is a word of the name: a run of letters and digits. */
static bool has_word(const char *name, const char *word, size_t len)
{
	while (*name) {
		size_t n = 0;

		while (isalnum((unsigned char)name[n]))
			n++;
		if (n == len && !strncasecmp(name, word, len))
			return true;
		name += n ? n : 1;
	}
	return false;
}

const struct vfm_hw *vfm_hw_find(const char *name)
{
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const char *w = list[i].words;
		bool all = true;

		for (size_t n; *w && all; w += n + (w[n] == ' ')) {
			n = strcspn(w, " ");
			all = has_word(name, w, n);
		}
		if (all)
			return &list[i];
	}
	return NULL;
}

double vfm_hw_peak(const char *name, enum vfm_dtype t)
{
	const struct vfm_hw *h = vfm_hw_find(name);

	return !h ? 0 : t == VFM_BF16 || t == VFM_F16 ? h->bf16 : t == VFM_F32 ? h->f32 : 0;
}
