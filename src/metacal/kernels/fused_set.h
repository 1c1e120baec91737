/* The row kernels for one instruction set, in float and in double. fused.c includes this file with SET, WIDTH, HALF_ROW,
   FIRST_BAD_HALF, WIDEN and the MAX and MIN of either precision; all of them end here. */
#define NAME(x) SET(x##_single)
#define REAL float
#define BITS int
#define DOUBLE 0
#define MAX MAX_SINGLE
#define MIN MIN_SINGLE
#include "fused_rows.h"
#undef NAME
#undef REAL
#undef BITS
#undef DOUBLE
#undef MAX
#undef MIN
#define NAME(x) SET(x##_twice)
#define SINGLE(x) SET(x##_single)
#define REAL double
#define BITS long long
#define DOUBLE 1
#define MAX MAX_TWICE
#define MIN MIN_TWICE
#include "fused_rows.h"
#undef NAME
#undef SINGLE
#undef REAL
#undef BITS
#undef DOUBLE
#undef MAX
#undef MIN
#undef SET
#undef WIDTH
#undef HALF_ROW
#undef FIRST_BAD_HALF
#undef WIDEN
#undef ANY_BITS
#undef MAX_SINGLE
#undef MIN_SINGLE
#undef MAX_TWICE
#undef MIN_TWICE
