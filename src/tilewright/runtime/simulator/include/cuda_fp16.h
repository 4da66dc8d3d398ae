#include "tw_sim/cuda.h"
