package cgroups

import (
	"math"
	"testing"
)

func TestSharesWeightQuota(t *testing.T) {
	tests := []struct {
		milli  int64
		shares uint64
		weight uint64
		quota  int64
	}{
		{0, 2, 1, 0},
		{-5, 2, 1, 0},
		{1, 2, 1, 1000},
		{2, 2, 1, 1000},
		{3, 3, 1, 1000},
		{10, 10, 1, 1000},
		{11, 11, 1, 1100},
		{100, 102, 4, 10_000},
		{500, 512, 20, 50_000},
		{1000, 1024, 39, 100_000},
		{1500, 1536, 59, 150_000},
		{64_000, 65536, 2500, 6_400_000},
		{255_999, 262142, 9999, 25_599_900},
		{256_000, 262144, 10000, 25_600_000},
		{1_000_000, 262144, 10000, 100_000_000},
	}
	for _, tt := range tests {
		shares := SharesFromMilliCPU(tt.milli)
		if shares != tt.shares {
			t.Errorf("SharesFromMilliCPU(%d) = %d, want %d", tt.milli, shares, tt.shares)
		}
		if got := WeightFromShares(shares); got != tt.weight {
			t.Errorf("WeightFromShares(%d) = %d, want %d", shares, got, tt.weight)
		}
		if got := QuotaFromMilliCPU(tt.milli, QuotaPeriod); got != tt.quota {
			t.Errorf("QuotaFromMilliCPU(%d) = %d, want %d", tt.milli, got, tt.quota)
		}
	}
	if got := SharesFromMilliCPU(math.MaxInt64); got != MaxShares {
		t.Errorf("SharesFromMilliCPU(max) = %d, want %d", got, MaxShares)
	}
	if lo, hi := WeightFromShares(0), WeightFromShares(math.MaxUint64); lo != 1 || hi != 10000 {
		t.Errorf("weights out of bounds: %d, %d", lo, hi)
	}
	if got := QuotaFromMilliCPU(500, 10_000); got != 5000 {
		t.Errorf("quota for a period of 10 ms = %d, want 5000", got)
	}
}
